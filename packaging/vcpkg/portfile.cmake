# SPDX-License-Identifier: Apache-2.0
# weir for vcpkg. ./dev release fills in the version, the address and the checksum of the sources.
vcpkg_download_distfile(archive URLS "@URL@" FILENAME "weir-@VERSION@.tar.gz" SHA512 @SHA512@)
vcpkg_extract_source_archive(source ARCHIVE "${archive}")

vcpkg_check_features(OUT_FEATURE_OPTIONS features FEATURES
  tools WEIR_COMMAND
  tools WEIR_PRELOAD
  tools WEIR_SIM_DRIVER)
# One library for each triplet: shared or static.
string(REPLACE "dynamic" "shared" libraries "${VCPKG_LIBRARY_LINKAGE}")
vcpkg_cmake_configure(SOURCE_PATH "${source}" OPTIONS ${features}
  -DWEIR_DEVELOPER=OFF -DWEIR_INSTALL=ON -DWEIR_LIBDW=OFF "-DWEIR_LIBRARIES=${libraries}"
  MAYBE_UNUSED_VARIABLES WEIR_LIBDW)
vcpkg_cmake_install()
vcpkg_cmake_config_fixup(PACKAGE_NAME weir CONFIG_PATH lib/cmake/weir)
vcpkg_fixup_pkgconfig()
if("tools" IN_LIST FEATURES)
  vcpkg_copy_tools(TOOL_NAMES weir AUTO_CLEAN)
endif()
file(REMOVE_RECURSE "${CURRENT_PACKAGES_DIR}/debug/include" "${CURRENT_PACKAGES_DIR}/debug/share")
vcpkg_install_copyright(FILE_LIST "${source}/LICENSE")

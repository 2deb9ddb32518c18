# SPDX-License-Identifier: Apache-2.0
# What `cmake --install` puts where: headers, both libraries, the CMake package and the pkg-config file.
include(CMakePackageConfigHelpers)

get_property(weir_public_headers GLOBAL PROPERTY WEIR_PUBLIC_HEADERS)
foreach(header IN LISTS weir_public_headers)
  cmake_path(GET header PARENT_PATH folder)
  install(FILES ${PROJECT_SOURCE_DIR}/include/${header}
    DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/${folder} COMPONENT weir_development)
endforeach()

set(weir_package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/weir)
if(NOT WEIR_LIBRARIES STREQUAL static)
  install(TARGETS weir_shared EXPORT weir_shared_targets
    LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT weir_runtime
      NAMELINK_COMPONENT weir_development)
  install(EXPORT weir_shared_targets NAMESPACE weir:: FILE weirSharedTargets.cmake
    DESTINATION ${weir_package_dir} COMPONENT weir_development)
endif()
if(NOT WEIR_LIBRARIES STREQUAL shared)
  install(TARGETS weir EXPORT weir_static_targets
    ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT weir_development)
  install(EXPORT weir_static_targets NAMESPACE weir:: FILE weirStaticTargets.cmake
    DESTINATION ${weir_package_dir} COMPONENT weir_development)
endif()

# Files of other packages, which may not be installed: the package looks where they would be.
set(weir_command_file ${CMAKE_INSTALL_BINDIR}/weir)
set(weir_preload_file ${CMAKE_INSTALL_LIBDIR}/weir/libweir_preload.so)
set(weir_sim_driver_file ${CMAKE_INSTALL_LIBDIR}/weir/simulated/libcuda.so.1)
configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/weirConfig.cmake.in
  ${PROJECT_BINARY_DIR}/weirConfig.cmake INSTALL_DESTINATION ${weir_package_dir}
  PATH_VARS weir_command_file weir_preload_file weir_sim_driver_file)
# Before 1.0 a minor version may break: 0.1 does not stand in for 0.2.
write_basic_package_version_file(${PROJECT_BINARY_DIR}/weirConfigVersion.cmake
  COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/weirConfig.cmake ${PROJECT_BINARY_DIR}/weirConfigVersion.cmake
  DESTINATION ${weir_package_dir} COMPONENT weir_development)

# The file finds its prefix from where it lies, so an installed tree can be moved.
cmake_path(SET weir_pc_dir NORMALIZE ${CMAKE_INSTALL_PREFIX}/${CMAKE_INSTALL_LIBDIR}/pkgconfig)
cmake_path(RELATIVE_PATH CMAKE_INSTALL_PREFIX BASE_DIRECTORY ${weir_pc_dir}
  OUTPUT_VARIABLE WEIR_PC_PREFIX)
configure_file(${PROJECT_SOURCE_DIR}/cmake/weir.pc.in ${PROJECT_BINARY_DIR}/weir.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/weir.pc
  DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig COMPONENT weir_development)
install(FILES ${PROJECT_SOURCE_DIR}/LICENSE
  DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT weir_development)

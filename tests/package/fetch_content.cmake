# SPDX-License-Identifier: Apache-2.0
# Packs the sources that a release has, and configures a project that fetches them.
file(REMOVE_RECURSE ${BUILD})
file(MAKE_DIRECTORY ${BUILD})
execute_process(COMMAND ${CMAKE_COMMAND} -E tar cf ${BUILD}/weir.tar CMakeLists.txt cmake include plugins src
  WORKING_DIRECTORY ${SOURCE} COMMAND_ERROR_IS_FATAL ANY)
execute_process(COMMAND ${CMAKE_COMMAND} -S ${CONSUMER} -B ${BUILD}/tree -G ${GENERATOR} -D WEIR_ARCHIVE=${BUILD}/weir.tar
  -D CMAKE_CXX_COMPILER=${CXX} -D CMAKE_C_COMPILER=${CC} COMMAND_ERROR_IS_FATAL ANY)

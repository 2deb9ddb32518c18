# Installs BUILD into an empty PREFIX: what an earlier run left there must not help this one.
file(REMOVE_RECURSE ${PREFIX})
execute_process(COMMAND ${CMAKE_COMMAND} --install ${BUILD} --config ${CONFIG} --prefix ${PREFIX}
  COMMAND_ERROR_IS_FATAL ANY)

# Installs BUILD into an empty PREFIX: what an earlier run left there must not help this one.
file(REMOVE_RECURSE ${PREFIX})
execute_process(COMMAND ${CMAKE_COMMAND} --install ${BUILD} --config ${CONFIG} --prefix ${PREFIX}
  COMMAND_ERROR_IS_FATAL ANY)

# What belongs to the command, where that was built.
if(EXISTS ${PREFIX}/bin/weir)
  foreach(file IN ITEMS man/man1/weir.1 bash-completion/completions/weir zsh/site-functions/_weir
      fish/vendor_completions.d/weir.fish)
    if(NOT EXISTS ${PREFIX}/share/${file})
      message(FATAL_ERROR "share/${file} was not installed")
    endif()
    file(SIZE ${PREFIX}/share/${file} size)
    if(size EQUAL 0)
      message(FATAL_ERROR "share/${file} is empty")
    endif()
  endforeach()
endif()

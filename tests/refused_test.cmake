# Builds TARGET of BUILD, which must fail, and the compiler must say all WORDS.
execute_process(COMMAND ${CMAKE_COMMAND} --build ${BUILD} --target ${TARGET} RESULT_VARIABLE status OUTPUT_VARIABLE output
  ERROR_VARIABLE output)
if(status EQUAL 0)
  message(FATAL_ERROR "${TARGET} was compiled; expected that it is refused.")
endif()
foreach(wanted IN LISTS WORDS)
  string(FIND "${output}" "${wanted}" found)
  if(found EQUAL -1)
    message(FATAL_ERROR "The compiler does not say '${wanted}':\n${output}")
  endif()
endforeach()

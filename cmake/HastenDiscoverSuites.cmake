# One test of CTest's for each test suite of a GoogleTest program: programs that load libtorch take longer to start than most of
# their tests take to run.
#
# hasten_discover_suites(PROGRAM PREFIX LABEL TIMEOUT)  included by CMakeLists.txt
# Run as a script (cmake -P) after each link it lists the program's suites: -DPROGRAM=… -DPREFIX=… -DOUTPUT=… …
if(CMAKE_SCRIPT_MODE_FILE)
  execute_process(COMMAND ${PROGRAM} --gtest_list_tests OUTPUT_VARIABLE listed RESULT_VARIABLE failed TIMEOUT 60)
  if(failed)
    message(FATAL_ERROR "${PROGRAM} --gtest_list_tests: ${failed}")
  endif()
  string(REPLACE ";" "," listed "${listed}")
  string(REPLACE "\n" ";" lines "${listed}")
  set(script "")
  foreach(line ${lines})
    # "Suite." or "Prefix/Suite.  # TypeParam = …"; tests are indented.
    # The last test of the condition sets CMAKE_MATCH_1.
    if(NOT line MATCHES "^DISABLED_" AND line MATCHES "^([A-Za-z_][A-Za-z0-9_/]*)\\.( |$)")
      set(suite ${CMAKE_MATCH_1})
      if(suite STREQUAL "")
        message(FATAL_ERROR "${PROGRAM}: a test suite without a name in '${line}'")
      endif()
      string(APPEND script "add_test([=[${PREFIX}${suite}]=] [=[${PROGRAM}]=] [=[--gtest_filter=${suite}.*]=] --gtest_brief=1)\n"
        "set_tests_properties([=[${PREFIX}${suite}]=] PROPERTIES LABELS ${LABEL} TIMEOUT ${TIMEOUT} WORKING_DIRECTORY [=[${FOLDER}]=])\n")
    endif()
  endforeach()
  file(WRITE ${OUTPUT} "${script}")
  return()
endif()

set(HASTEN_DISCOVER_SUITES ${CMAKE_CURRENT_LIST_FILE})
function(hasten_discover_suites program prefix label timeout)
  set(output ${CMAKE_CURRENT_BINARY_DIR}/${program}_suites.cmake)
  add_custom_command(TARGET ${program} POST_BUILD BYPRODUCTS ${output} VERBATIM
    COMMAND ${CMAKE_COMMAND} -DPROGRAM=$<TARGET_FILE:${program}> -DPREFIX=${prefix} -DLABEL=${label} -DTIMEOUT=${timeout}
      -DFOLDER=${CMAKE_CURRENT_BINARY_DIR} -DOUTPUT=${output} -P ${HASTEN_DISCOVER_SUITES})
  # What has not been built yet fails by name and is not left out.
  set(include ${CMAKE_CURRENT_BINARY_DIR}/${program}_include.cmake)
  file(WRITE ${include} "if(EXISTS [=[${output}]=])\n  include([=[${output}]=])\nelse()\n"
    "  add_test(${program}_NOT_BUILT ${program}_NOT_BUILT)\n"
    "  set_tests_properties(${program}_NOT_BUILT PROPERTIES LABELS ${label})\nendif()\n")
  set_property(DIRECTORY APPEND PROPERTY TEST_INCLUDE_FILES ${include})
endfunction()

# cmake -DBUILD=… -DWORK=… -DCXX=… -P install_test.cmake
# Installs the build into a folder of its own, builds the consumer against that and runs it.
file(REMOVE_RECURSE ${WORK})
execute_process(COMMAND ${CMAKE_COMMAND} --install ${BUILD} --prefix ${WORK}/installed
  OUTPUT_QUIET COMMAND_ERROR_IS_FATAL ANY)
execute_process(COMMAND ${CMAKE_COMMAND} -G Ninja -S ${CMAKE_CURRENT_LIST_DIR}/consumer -B ${WORK}/build
    -DCMAKE_CXX_COMPILER=${CXX} -DCMAKE_PREFIX_PATH=${WORK}/installed
  COMMAND_ERROR_IS_FATAL ANY)
execute_process(COMMAND ${CMAKE_COMMAND} --build ${WORK}/build COMMAND_ERROR_IS_FATAL ANY)
execute_process(COMMAND ${WORK}/build/consumer OUTPUT_VARIABLE output COMMAND_ERROR_IS_FATAL ANY)
if(NOT output STREQUAL "hasten ${VERSION}, sum 6\n")
  message(FATAL_ERROR "the consumer says '${output}'")
endif()
if(COMMAND_EXPECTED)
  execute_process(COMMAND ${WORK}/installed/bin/hasten --version OUTPUT_VARIABLE output COMMAND_ERROR_IS_FATAL ANY)
  string(FIND "${output}" "${VERSION}" at)
  if(at EQUAL -1)
    message(FATAL_ERROR "the installed command says '${output}'")
  endif()
  execute_process(COMMAND ${WORK}/installed/bin/hasten test --cpu -n 2 OUTPUT_VARIABLE output COMMAND_ERROR_IS_FATAL ANY)
  if(NOT output MATCHES "4 of 4 hold")
    message(FATAL_ERROR "the installed self-test says '${output}'")
  endif()
endif()

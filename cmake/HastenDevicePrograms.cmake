# Programs beside the project, checks.cpp and bench.cpp of the folder HASTEN_GPU_DIR, as targets gpu_checks and gpu_bench.
# Used by -DCMAKE_PROJECT_hasten_INCLUDE=cmake/HastenDevicePrograms.cmake on machines with a GPU. A precompiled header serves
# one level of optimisation: the checks have the tests' header, the measurements the library's.
cmake_language(DEFER DIRECTORY ${CMAKE_CURRENT_SOURCE_DIR} CALL cmake_language EVAL CODE [[
  foreach(name checks bench)
    add_executable(gpu_${name} EXCLUDE_FROM_ALL ${HASTEN_GPU_DIR}/${name}.cpp)
    target_compile_options(gpu_${name} PRIVATE -Wno-error -w)
    target_include_directories(gpu_${name} PRIVATE ${HASTEN_GPU_DIR} ${PROJECT_SOURCE_DIR}/src ${PROJECT_SOURCE_DIR}/tests ${PROJECT_SOURCE_DIR}/bench)
    target_link_libraries(gpu_${name} PRIVATE hasten::hasten)
    if(HASTEN_GPU_PRETEND)
      target_compile_definitions(gpu_${name} PRIVATE WITH_PRETEND)
    endif()
  endforeach()
  hasten_test_torch(gpu_checks models)
  hasten_use_torch(gpu_bench models)
  if(TARGET hasten_test_support)
    target_link_libraries(gpu_checks PRIVATE hasten_test_support)
  endif()
]])

# Public headers include what they need. Two translation units a room show it at a fifth of the cost of one a header: all
# headers of the room in the order of their names, and in the reverse order (target check_headers). Each header alone
# (VERIFY_INTERFACE_HEADER_SETS) is for `./dev test --headers`. Most begin with the same headers of libtorch,
# which take the compiler up to ten seconds each time; they are precompiled for the headers that include them by way of
# their own includes, and for those alone: a header that forgets an include is still refused.
#
# hasten_check_headers(TARGET HEADER…)  the headers of TARGET, whose header set is checked

# The first is part of the second. A header has the last one that it includes, or that comes with what it includes.
set(hasten_precompiled_tensor ATen/core/Tensor.h)
set(hasten_precompiled_types torch/types.h)
foreach(name tensor types)
  add_library(hasten_check_${name}_pch OBJECT EXCLUDE_FROM_ALL ${PROJECT_SOURCE_DIR}/src/pch.cpp)
  target_link_libraries(hasten_check_${name}_pch PRIVATE Libtorch::Libtorch)
  target_compile_features(hasten_check_${name}_pch PRIVATE cxx_std_20)
  target_compile_options(hasten_check_${name}_pch PRIVATE -fpch-preprocess)
  target_precompile_headers(hasten_check_${name}_pch PRIVATE <${hasten_precompiled_${name}}>)
endforeach()

# Sets `out` to 0 (none), 1 (tensor) or 2 (types): what the includes of `header` bring.
function(hasten_precompiled_level header out)
  get_property(level GLOBAL PROPERTY hasten_precompiled_level_${header})
  if("${level}" STREQUAL "")
    set(level 0)
    file(STRINGS ${header} includes REGEX "^#include [<\"]")
    foreach(line ${includes})
      string(REGEX REPLACE ".*[<\"](.*)[>\"].*" "\\1" name "${line}")
      set(brought 0)
      if(name MATCHES "^hasten/")
        hasten_precompiled_level(${PROJECT_SOURCE_DIR}/include/${name} brought)
      elseif(name MATCHES "^torch/(data/|nn/module\\.h|nn/pimpl\\.h)")
        set(brought 2)
      elseif(name MATCHES "^(ATen/core/Tensor\\.h|torch/optim/optimizer\\.h|torch/csrc/)")
        set(brought 1)
      endif()
      if(brought GREATER level)
        set(level ${brought})
      endif()
    endforeach()
    set_property(GLOBAL PROPERTY hasten_precompiled_level_${header} ${level})
  endif()
  set(${out} ${level} PARENT_SCOPE)
endfunction()

# Neither has a precompiled header, which would hide an include that is missing.
add_custom_target(check_headers)
function(hasten_check_headers_together target)
  set(headers ${ARGN})
  list(SORT headers)
  set(files "")
  foreach(order sorted reverse)
    set(text "// Made by cmake/HastenHeaderCheck.cmake.\n")
    foreach(header ${headers})
      cmake_path(RELATIVE_PATH header BASE_DIRECTORY ${PROJECT_SOURCE_DIR}/include OUTPUT_VARIABLE path)
      string(APPEND text "#include \"${path}\"\n")
    endforeach()
    set(file ${PROJECT_BINARY_DIR}/header_check/${target}_${order}.cpp)
    file(CONFIGURE OUTPUT ${file} CONTENT "${text}" @ONLY)
    list(APPEND files ${file})
    list(REVERSE headers)
  endforeach()
  add_library(${target}_header_check OBJECT EXCLUDE_FROM_ALL ${files})
  target_link_libraries(${target}_header_check PRIVATE ${target})
  target_compile_options(${target}_header_check PRIVATE -O0)
  add_dependencies(check_headers ${target}_header_check)
endfunction()

function(hasten_check_headers target)
  if(ARGN)
    hasten_check_headers_together(${target} ${ARGN})
  endif()
  set_target_properties(${target} PROPERTIES VERIFY_INTERFACE_HEADER_SETS ON)
  if(NOT CMAKE_CXX_COMPILER_ID STREQUAL "GNU" OR CMAKE_CONFIGURATION_TYPES)
    return()
  endif()
  set(names none tensor types)
  foreach(header ${ARGN})
    hasten_precompiled_level(${header} level)
    if(level)
      list(GET names ${level} name)
      set(precompiled ${PROJECT_BINARY_DIR}/CMakeFiles/hasten_check_${name}_pch.dir/cmake_pch.hxx)
      # The file that CMake will make to check the header.
      cmake_path(RELATIVE_PATH header BASE_DIRECTORY ${PROJECT_SOURCE_DIR}/include OUTPUT_VARIABLE path)
      set_source_files_properties(${PROJECT_BINARY_DIR}/${target}_verify_interface_header_sets/${path}.cxx PROPERTIES
        COMPILE_OPTIONS "-include;${precompiled};-fpch-preprocess;-Winvalid-pch;-Werror=invalid-pch"
        OBJECT_DEPENDS ${precompiled}.gch)
    endif()
  endforeach()
endfunction()

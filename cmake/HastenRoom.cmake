# hasten_room(NAME [TORCH tensors|models] [ROOMS room…] [PARTS sub-room…] [PRIVATE_LIBRARIES target…])
#   The target hasten_NAME (alias hasten::NAME) of src/NAME, include/hasten/NAME and include/hasten/NAME.h, an object library whose
#   objects go into the one library `hasten`; no target where both are empty. TORCH rooms share one flag set and one of the precompiled headers below.
#   Where X_stub.cpp stands beside X.cpp, exactly one of them is compiled: X.cpp if HASTEN_WITH_X (in capitals) is on.
# hasten_library()
#   The library `hasten` (alias hasten::hasten): all rooms, and the headers include/hasten/*.h that are no room's.

set_property(GLOBAL PROPERTY HASTEN_ROOMS "")

# Its Impl holds a class of the file's own, which g++ warns of where the file is not compiled by itself.
set_source_files_properties(${PROJECT_SOURCE_DIR}/src/launch/workers/local_processes.cpp ${PROJECT_SOURCE_DIR}/src/core/curl.cpp ${PROJECT_SOURCE_DIR}/src/files/folders/dcp_folder.cpp PROPERTIES
  SKIP_UNITY_BUILD_INCLUSION ON)

# Flags of every target of ours; never handed on to a user's targets. -fPIC is given by hand, because CMake's own
# property gives -fPIE to programs and -fPIC to libraries, and a precompiled header serves only one of them.
add_library(hasten_flags INTERFACE)
target_compile_features(hasten_flags INTERFACE cxx_std_20)
target_compile_options(hasten_flags INTERFACE -fPIC -Wall -Wextra -Wpedantic $<$<BOOL:${HASTEN_WERROR}>:-Werror>)
if(HASTEN_SANITIZE)
  target_compile_options(hasten_flags INTERFACE -fsanitize=${HASTEN_SANITIZE} -fno-omit-frame-pointer)
  target_link_options(hasten_flags INTERFACE -fsanitize=${HASTEN_SANITIZE})
endif()
if(HASTEN_SANITIZE AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # Where g++ 12 instruments libtorch's device guards or std::regex, it takes them for uninitialised.
  target_compile_options(hasten_flags INTERFACE -Wno-maybe-uninitialized)
  if(HASTEN_SANITIZE MATCHES "thread")
    # libtorch 2.13 has a fence in a header (PyObjectSlot.h), which ThreadSanitizer does not follow.
    target_compile_options(hasten_flags INTERFACE -Wno-tsan)
  endif()
endif()
target_link_libraries(hasten_flags INTERFACE Threads::Threads)

# Flags of every target that sees libtorch. One set for all, or the precompiled header is silently not used.
add_library(hasten_torch_flags INTERFACE)
target_compile_definitions(hasten_torch_flags INTERFACE USE_DISTRIBUTED USE_C10D_GLOO
  $<$<BOOL:${HASTEN_WITH_NCCL}>:USE_C10D_NCCL>)
target_compile_options(hasten_torch_flags INTERFACE -fpch-preprocess -Winvalid-pch -Werror=invalid-pch)
target_include_directories(hasten_torch_flags SYSTEM INTERFACE ${PROJECT_SOURCE_DIR}/src/comm/gloo_decl)
target_link_libraries(hasten_torch_flags INTERFACE hasten_flags Libtorch::Libtorch)

if(CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
  # clang has no -fpch-preprocess; its ccache recipe needs the timestamp left out instead.
  set_property(TARGET hasten_torch_flags PROPERTY INTERFACE_COMPILE_OPTIONS -Xclang -fno-pch-timestamp)
endif()

# Two precompiled headers: `tensors` holds tensors, torch::data and torch::optim, `models` all of torch/torch.h. A target
# that does not use torch::nn's modules takes the first: g++ instantiates, in every file, whatever the precompiled
# header left pending, and with torch::nn in it that is 6 seconds a file instead of 2. Tests have both once more, without
# optimisation: a test is compiled once and run once, and a precompiled header serves one level.
set(hasten_pch_tensors <torch/types.h> <torch/data.h> <torch/optim.h> <nlohmann/json.hpp>)
set(hasten_pch_models <torch/torch.h> <nlohmann/json.hpp>)
set(hasten_test_level $<$<CONFIG:Release,RelWithDebInfo>:-O0>)
foreach(pch tensors models)
  foreach(use "" _tests)
    set(target hasten_${pch}${use}_pch)
    add_library(${target} OBJECT ${PROJECT_SOURCE_DIR}/src/pch.cpp)
    target_precompile_headers(${target} PRIVATE ${hasten_pch_${pch}})
    target_link_libraries(${target} PRIVATE hasten_torch_flags)
  endforeach()
  target_compile_options(hasten_${pch}_tests_pch PRIVATE ${hasten_test_level})
  set_target_properties(hasten_${pch}_tests_pch PROPERTIES EXCLUDE_FROM_ALL ON)
endforeach()

# hasten_use_torch(TARGET tensors|models): a program or library of ours that uses libtorch, with that precompiled header.
# hasten_test_torch(TARGET tensors|models): one of the tests.
function(hasten_use_torch target pch)
  target_link_libraries(${target} PRIVATE $<BUILD_INTERFACE:hasten_torch_flags>)
  target_precompile_headers(${target} REUSE_FROM hasten_${pch}_pch)
endfunction()
function(hasten_test_torch target pch)
  hasten_use_torch(${target} ${pch}_tests)
  target_compile_options(${target} PRIVATE ${hasten_test_level})
endfunction()

# Keeps of each pair X.cpp, X_stub.cpp in the list the one that HASTEN_WITH_X asks for.
function(hasten_choose_stubs list_name)
  set(chosen ${${list_name}})
  foreach(stub ${chosen})
    if(stub MATCHES "^(.*/([^/]+))_stub\\.cpp$")
      set(real ${CMAKE_MATCH_1}.cpp)
      string(TOUPPER ${CMAKE_MATCH_2} feature)
      if(HASTEN_WITH_${feature})
        list(REMOVE_ITEM chosen ${stub})
      else()
        list(REMOVE_ITEM chosen ${real})
      endif()
    endif()
  endforeach()
  set(${list_name} ${chosen} PARENT_SCOPE)
endfunction()

# hasten_unity(TARGET ROOM SIZE): SIZE files of the target at once where HASTEN_UNITY is on, unless HASTEN_FILE_BY_FILE has ROOM.
function(hasten_unity target room size)
  if(HASTEN_UNITY AND NOT room IN_LIST HASTEN_FILE_BY_FILE)
    set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE ${size})
  endif()
endfunction()

function(hasten_room name)
  cmake_parse_arguments(ROOM "" "TORCH" "ROOMS;PARTS;PRIVATE_LIBRARIES" ${ARGN})
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/${name}/*.cpp)
  file(GLOB_RECURSE headers CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/include/hasten/${name}/*.h)
  if(EXISTS ${PROJECT_SOURCE_DIR}/include/hasten/${name}.h)
    list(APPEND headers ${PROJECT_SOURCE_DIR}/include/hasten/${name}.h)
  endif()
  if(NOT sources AND NOT headers)
    return()
  endif()
  if(NOT sources)
    # A room of headers alone is built, installed and checked like the others.
    set(sources ${PROJECT_SOURCE_DIR}/src/pch.cpp)
  endif()
  hasten_choose_stubs(sources)
  add_library(hasten_${name} OBJECT ${sources})
  add_library(hasten::${name} ALIAS hasten_${name})
  target_sources(hasten_${name} PUBLIC FILE_SET HEADERS BASE_DIRS ${PROJECT_SOURCE_DIR}/include FILES ${headers})
  target_include_directories(hasten_${name} PRIVATE ${PROJECT_SOURCE_DIR}/src)
  hasten_check_headers(hasten_${name} ${headers})
  hasten_unity(hasten_${name} ${name} 16)
  if(ROOM_TORCH)
    hasten_use_torch(hasten_${name} ${ROOM_TORCH})
    target_link_libraries(hasten_${name} PUBLIC Libtorch::Libtorch nlohmann_json::nlohmann_json)
  else()
    target_link_libraries(hasten_${name} PRIVATE hasten_flags)
  endif()
  target_compile_features(hasten_${name} PUBLIC cxx_std_20)
  target_link_libraries(hasten_${name} PRIVATE ${ROOM_PRIVATE_LIBRARIES})
  set_property(GLOBAL APPEND PROPERTY HASTEN_ROOMS ${name})
  set_property(GLOBAL APPEND PROPERTY HASTEN_HEADERS ${headers})
  set_property(GLOBAL APPEND PROPERTY HASTEN_PRIVATE_LIBRARIES ${ROOM_PRIVATE_LIBRARIES})
endfunction()

function(hasten_library)
  get_property(rooms GLOBAL PROPERTY HASTEN_ROOMS)
  get_property(libraries GLOBAL PROPERTY HASTEN_PRIVATE_LIBRARIES)
  get_property(room_headers GLOBAL PROPERTY HASTEN_HEADERS)
  file(GLOB headers CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/include/hasten/*.h)
  list(REMOVE_ITEM headers ${room_headers})
  foreach(room ${rooms})
    list(APPEND objects $<TARGET_OBJECTS:hasten_${room}>)
  endforeach()
  add_library(hasten STATIC ${objects} ${PROJECT_SOURCE_DIR}/src/pch.cpp)
  add_library(hasten::hasten ALIAS hasten)
  # Two sets, because the rooms' headers are checked alone with their rooms, the one of all of them here.
  target_sources(hasten PUBLIC
    FILE_SET all_rooms TYPE HEADERS BASE_DIRS ${PROJECT_SOURCE_DIR}/include FILES ${headers}
    FILE_SET rooms TYPE HEADERS BASE_DIRS ${PROJECT_SOURCE_DIR}/include FILES ${room_headers})
  hasten_check_headers(hasten ${headers})
  set_target_properties(hasten PROPERTIES INTERFACE_HEADER_SETS_TO_VERIFY all_rooms)
  hasten_use_torch(hasten models)
  target_compile_features(hasten PUBLIC cxx_std_20)
  target_link_libraries(hasten PUBLIC Libtorch::Libtorch nlohmann_json::nlohmann_json Threads::Threads PRIVATE ${libraries})

  # The rooms that know nothing of torch, for the command and its tests.
  set(plain "")
  foreach(room core files settings plan tracking flight launch)
    if(TARGET hasten_${room})
      list(APPEND plain $<TARGET_OBJECTS:hasten_${room}>)
    endif()
  endforeach()
  add_library(hasten_plain STATIC ${plain})
  target_include_directories(hasten_plain PUBLIC ${PROJECT_SOURCE_DIR}/include)
  target_link_libraries(hasten_plain PUBLIC hasten_flags PRIVATE spdlog::spdlog yaml-cpp OpenSSL::Crypto ZLIB::ZLIB PNG::PNG)
endfunction()

# cmake -DCASE=… -DHASTEN_MODULES=… -DWORK=… -DCXX=… -P find_libtorch_test.cmake
# Our find module against stand-in trees: fake headers and tiny shared libraries in the folders where wheels and
# archives have the real ones. Each CASE makes its tree, configures find_libtorch/ through it, builds and runs it.
cmake_minimum_required(VERSION 3.24)
set(WORK ${WORK}/${CASE})
file(REMOVE_RECURSE ${WORK})
file(MAKE_DIRECTORY ${WORK})
foreach(variable Libtorch_ROOT Torch_DIR CMAKE_PREFIX_PATH VIRTUAL_ENV CUDAToolkit_ROOT LD_LIBRARY_PATH)
  unset(ENV{${variable}})
endforeach()

function(make_library path code)
  file(WRITE ${WORK}/library.cpp "${code}\n")
  get_filename_component(folder ${path} DIRECTORY)
  get_filename_component(name ${path} NAME)
  file(MAKE_DIRECTORY ${folder})
  execute_process(COMMAND ${CXX} -shared -fPIC -o ${path} ${WORK}/library.cpp -Wl,--no-as-needed -Wl,-soname,${name} ${ARGN}
    COMMAND_ERROR_IS_FATAL ANY)
endfunction()

# libtorch of `version` at `root`; further arguments go to libtorch_cpu.so's link.
function(make_libtorch root version)
  string(REPLACE "." ";" numbers ${version})
  list(GET numbers 0 major)
  list(GET numbers 1 minor)
  list(GET numbers 2 patch)
  file(WRITE ${root}/include/torch/headeronly/version.h
    "#define TORCH_VERSION_MAJOR ${major}\n#define TORCH_VERSION_MINOR ${minor}\n#define TORCH_VERSION_PATCH ${patch}\n")
  file(WRITE ${root}/include/torch/csrc/api/include/torch/torch.h
    "#include <torch/headeronly/version.h>\nint stand_in_cpu();\nint stand_in_c10();\n")
  file(WRITE ${root}/share/cmake/Torch/TorchConfig.cmake "message(FATAL_ERROR \"libtorch's own files were read\")\n")
  make_library(${root}/lib/libc10.so "int stand_in_c10() { return 0; }")
  make_library(${root}/lib/libtorch_cpu.so "int stand_in_cpu() { return 0; }" ${ARGN})
endfunction()

function(make_cuda_parts root)
  make_library(${root}/lib/libc10_cuda.so "")
  make_library(${root}/lib/libtorch_cuda.so "")
  # As in the real wheel: libtorch.so needs the CUDA part, and that one needs what only a GPU machine has.
  make_library(${root}/lib/libtorch.so "" ${root}/lib/libtorch_cuda.so)
endfunction()

function(make_toolkit root)
  file(WRITE ${root}/bin/nvcc "#!/bin/sh\necho 'Cuda compilation tools, release 13.0, V13.0.88'\n")
  file(CHMOD ${root}/bin/nvcc PERMISSIONS OWNER_READ OWNER_WRITE OWNER_EXECUTE)
  file(WRITE ${root}/include/cuda_runtime.h "")
  make_library(${root}/lib64/libcudart.so "")
endfunction()

# Configures find_libtorch/ and sets `output`; `result` is 0 where it succeeded.
macro(configure)
  execute_process(COMMAND ${CMAKE_COMMAND} -G Ninja -S ${CMAKE_CURRENT_LIST_DIR}/find_libtorch -B ${WORK}/build
      -DCMAKE_CXX_COMPILER=${CXX} -DHASTEN_MODULES=${HASTEN_MODULES} ${ARGN}
    RESULT_VARIABLE result OUTPUT_VARIABLE output ERROR_VARIABLE output)
endmacro()

function(expect_found)
  if(NOT result EQUAL 0)
    message(FATAL_ERROR "configure failed:\n${output}")
  endif()
  foreach(text ${ARGN})
    string(FIND "${output}" "${text}" at)
    if(at EQUAL -1)
      message(FATAL_ERROR "expected '${text}' in\n${output}")
    endif()
  endforeach()
  execute_process(COMMAND ${CMAKE_COMMAND} --build ${WORK}/build OUTPUT_QUIET COMMAND_ERROR_IS_FATAL ANY)
  execute_process(COMMAND ${WORK}/build/finds_libtorch COMMAND_ERROR_IS_FATAL ANY)
endfunction()

function(expect_refused)
  if(result EQUAL 0)
    message(FATAL_ERROR "configure succeeded:\n${output}")
  endif()
  string(REGEX REPLACE "[ \n]+" " " output "${output}")
  foreach(text ${ARGN})
    string(FIND "${output}" "${text}" at)
    if(at EQUAL -1)
      message(FATAL_ERROR "expected '${text}' in\n${output}")
    endif()
  endforeach()
endfunction()

set(no_toolkit -DCMAKE_DISABLE_FIND_PACKAGE_CUDAToolkit=ON)
set(wheel ${WORK}/venv/lib/python3.11/site-packages/torch)

if(CASE STREQUAL "cpu_wheel_through_torch_utils_cmake_prefix_path")
  make_libtorch(${wheel} 2.13.0)
  file(WRITE ${wheel}/version.py "__version__ = '2.13.0+cpu'\n")
  configure(-DCMAKE_PREFIX_PATH=${wheel}/share/cmake)
  expect_found("version=2.13.0 build=2.13.0+cpu cuda=OFF nccl=OFF prefix=${wheel}")

elseif(CASE STREQUAL "cpu_wheel_in_an_active_virtual_environment")
  make_libtorch(${wheel} 2.13.0)
  set(ENV{VIRTUAL_ENV} ${WORK}/venv)
  configure()
  expect_found("cuda=OFF nccl=OFF prefix=${wheel}")

elseif(CASE STREQUAL "unpacked_archive_by_Libtorch_ROOT")
  make_libtorch(${WORK}/libtorch 2.12.1)
  file(WRITE ${WORK}/libtorch/build-version "2.12.1+cpu\n")
  configure(-DLibtorch_ROOT=${WORK}/libtorch)
  expect_found("version=2.12.1 build=2.12.1+cpu cuda=OFF nccl=OFF prefix=${WORK}/libtorch")

elseif(CASE STREQUAL "unpacked_archive_by_Torch_DIR_in_the_environment")
  make_libtorch(${WORK}/libtorch 2.13.0)
  set(ENV{Torch_DIR} ${WORK}/libtorch/share/cmake/Torch)
  configure()
  expect_found("prefix=${WORK}/libtorch")

elseif(CASE STREQUAL "cuda_wheel_without_toolkit_serves_as_a_cpu_build")
  make_libtorch(${wheel} 2.13.0)
  make_cuda_parts(${wheel})
  file(REMOVE ${wheel}/lib/libc10_cuda.so)
  configure(-DLibtorch_ROOT=${wheel} ${no_toolkit})
  expect_found("cuda=OFF nccl=OFF" "CUDA OFF: it is a CUDA build, but there is no CUDA toolkit here")

elseif(CASE STREQUAL "cuda_build_with_toolkit_and_nccl")
  make_libtorch(${wheel} 2.13.0)
  make_cuda_parts(${wheel})
  file(WRITE ${wheel}/../nvidia/nccl/include/nccl.h "")
  make_toolkit(${WORK}/cuda)
  configure(-DLibtorch_ROOT=${wheel} -DCUDAToolkit_ROOT=${WORK}/cuda
    -DCMAKE_EXE_LINKER_FLAGS=-Wl,--as-needed)  # Ubuntu's default
  expect_found("cuda=ON nccl=ON")
  file(STRINGS ${WORK}/build/finds_libtorch needed REGEX "^libtorch_cuda.so$")
  if(NOT needed)
    message(FATAL_ERROR "the program does not load libtorch_cuda.so")
  endif()

elseif(CASE STREQUAL "cuda_build_with_toolkit_can_be_told_to_be_cpu")
  make_libtorch(${wheel} 2.13.0)
  make_cuda_parts(${wheel})
  make_toolkit(${WORK}/cuda)
  configure(-DLibtorch_ROOT=${wheel} -DCUDAToolkit_ROOT=${WORK}/cuda -DLibtorch_CUDA=OFF)
  expect_found("cuda=OFF nccl=OFF")

elseif(CASE STREQUAL "cuda_asked_for_on_a_cpu_build_is_refused")
  make_libtorch(${wheel} 2.13.0)
  configure(-DLibtorch_ROOT=${wheel} -DLibtorch_CUDA=ON)
  expect_refused("Libtorch_CUDA=ON was asked for, but it is a CPU build")

elseif(CASE STREQUAL "cuda_wheel_without_its_runtime_library_names_it")
  make_library(${WORK}/elsewhere/libcudart.so.99 "extern \"C\" void cuda_stand_in() {}")
  make_libtorch(${wheel} 2.13.0 ${WORK}/elsewhere/libcudart.so.99)
  make_library(${wheel}/lib/libtorch_cpu.so "extern \"C\" void cuda_stand_in(); int stand_in_cpu() { cuda_stand_in(); return 0; }"
    ${WORK}/elsewhere/libcudart.so.99)
  make_cuda_parts(${wheel})
  file(REMOVE_RECURSE ${WORK}/elsewhere)
  configure(-DLibtorch_ROOT=${wheel} ${no_toolkit})
  expect_refused("CPU part needs libraries that are not here (libcudart.so.99)" "./dev test")

elseif(CASE STREQUAL "too_old_a_version_is_refused")
  make_libtorch(${WORK}/libtorch 2.5.1)
  configure(-DLibtorch_ROOT=${WORK}/libtorch)
  expect_refused("Found unsuitable version \"2.5.1\", but required is at least \"2.11\"")

elseif(CASE STREQUAL "a_wrong_Libtorch_ROOT_is_refused_although_another_libtorch_is_here")
  make_libtorch(${wheel} 2.13.0)
  set(ENV{VIRTUAL_ENV} ${WORK}/venv)
  configure(-DLibtorch_ROOT=${WORK}/typo)
  expect_refused("Libtorch_ROOT=${WORK}/typo leads to no libtorch" "Correct or unset it")

elseif(CASE STREQUAL "nothing_found_says_where_it_looked_and_what_to_do")
  configure(-DCMAKE_PREFIX_PATH=${WORK}/empty -DLibtorch_SYSTEM_PREFIXES=${WORK}/system)
  expect_refused("${WORK}/empty" "${WORK}/system" "./dev test" "-DLibtorch_ROOT=FOLDER")

else()
  message(FATAL_ERROR "unknown CASE '${CASE}'")
endif()

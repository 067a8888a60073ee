# The Python module: hasten._engine, of src/python, and the package around it, python/hasten (docs/python.md).
# Included by CMakeLists.txt where HASTEN_PYTHON is on.
#
# In the build tree python/ of the build folder is what an installed package would be, entry point included: with that folder
# in PYTHONPATH `import torch` finds the backend. `pip install .` installs the component `python`.

# A Python that has the torch which the library is built against.
find_package(Python 3.10 REQUIRED COMPONENTS Interpreter Development.Module)
find_library(HASTEN_TORCH_PYTHON torch_python PATHS ${Libtorch_PREFIX}/lib NO_DEFAULT_PATH)
if(NOT HASTEN_TORCH_PYTHON)
  message(FATAL_ERROR "HASTEN_PYTHON: the libtorch in ${Libtorch_PREFIX} has no libtorch_python.so. Build against the torch of a Python (Libtorch_ROOT), or set HASTEN_PYTHON=OFF.")
endif()

file(GLOB engine_sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/python/*.cpp)
Python_add_library(hasten_engine MODULE WITH_SOABI ${engine_sources})
set(python_package ${PROJECT_BINARY_DIR}/python/hasten)
# Named after the minor release of torch, so that a package can have those of several (python/hasten/_load.py).
string(REGEX MATCH "^[0-9]+[.][0-9]+" torch_minor ${Libtorch_VERSION})
string(REPLACE "." "_" torch_minor ${torch_minor})
set_target_properties(hasten_engine PROPERTIES OUTPUT_NAME _engine_${torch_minor}
  LIBRARY_OUTPUT_DIRECTORY ${python_package} INSTALL_RPATH "$ORIGIN/../torch/lib"
  CXX_VISIBILITY_PRESET hidden VISIBILITY_INLINES_HIDDEN ON DEFINE_SYMBOL "")
target_include_directories(hasten_engine PRIVATE ${PROJECT_SOURCE_DIR}/src)
target_link_libraries(hasten_engine PRIVATE hasten ${HASTEN_TORCH_PYTHON})
hasten_use_torch(hasten_engine models)
hasten_unity(hasten_engine python 16)
# Nothing but the module's entry is seen by other libraries of the process.
file(WRITE ${PROJECT_BINARY_DIR}/engine.map "{ global: PyInit__engine; local: *; };\n")
target_link_options(hasten_engine PRIVATE -Wl,--exclude-libs,ALL -Wl,--version-script=${PROJECT_BINARY_DIR}/engine.map)

# The package in the build tree: links to the sources, and the entry point.
file(GLOB_RECURSE package_sources CONFIGURE_DEPENDS RELATIVE ${PROJECT_SOURCE_DIR}/python/hasten ${PROJECT_SOURCE_DIR}/python/hasten/*.py)
foreach(file ${package_sources})
  get_filename_component(folder ${python_package}/${file} DIRECTORY)
  file(MAKE_DIRECTORY ${folder})
  file(CREATE_LINK ${PROJECT_SOURCE_DIR}/python/hasten/${file} ${python_package}/${file} SYMBOLIC)
endforeach()
set(dist_info ${PROJECT_BINARY_DIR}/python/hasten-${PROJECT_VERSION}.dist-info)
file(WRITE ${dist_info}/METADATA "Metadata-Version: 2.1\nName: hasten\nVersion: ${PROJECT_VERSION}\n")
file(WRITE ${dist_info}/entry_points.txt "[torch.backends]\nhasten = hasten._autoload:autoload\n")

# The wheel's part; the sources are scikit-build-core's (pyproject.toml).
install(TARGETS hasten_engine LIBRARY DESTINATION hasten COMPONENT python)
if(SKBUILD)
  install(TARGETS hasten_command RUNTIME DESTINATION ${SKBUILD_SCRIPTS_DIR} COMPONENT python)
endif()

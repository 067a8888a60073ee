# `cmake --install`: the library, its headers, the command, and what find_package(hasten) reads.
# Flags of ours (warnings, sanitizers, the precompiled header) are not handed on; see hasten_use_torch.
include(CMakePackageConfigHelpers)
set(HASTEN_PACKAGE_DIR ${CMAKE_INSTALL_LIBDIR}/cmake/hasten)

install(TARGETS hasten EXPORT hastenTargets
  ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR}
  FILE_SET all_rooms DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}
  FILE_SET rooms DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(EXPORT hastenTargets NAMESPACE hasten:: DESTINATION ${HASTEN_PACKAGE_DIR})
if(TARGET hasten_command)
  install(TARGETS hasten_command hasten_self_test RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
endif()

configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/hastenConfig.cmake.in
  ${PROJECT_BINARY_DIR}/hastenConfig.cmake INSTALL_DESTINATION ${HASTEN_PACKAGE_DIR}
  NO_SET_AND_CHECK_MACRO)
# Before 1.0 a minor release may change the interface.
write_basic_package_version_file(${PROJECT_BINARY_DIR}/hastenConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/hastenConfig.cmake ${PROJECT_BINARY_DIR}/hastenConfigVersion.cmake
  ${PROJECT_SOURCE_DIR}/cmake/FindLibtorch.cmake DESTINATION ${HASTEN_PACKAGE_DIR})

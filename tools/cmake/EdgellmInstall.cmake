# What `cmake --install` puts where beside the program, and the Debian package made of it:
# `cpack -G DEB` in a build folder, or `make package`.
include(GNUInstallDirs)

set(user_files "${CMAKE_BINARY_DIR}/user_files")  # made by apps/CMakeLists.txt
install(DIRECTORY "${user_files}/man1" DESTINATION "${CMAKE_INSTALL_MANDIR}")
install(FILES "${user_files}/bash/edgellm"
        DESTINATION "${CMAKE_INSTALL_DATADIR}/bash-completion/completions")
# Known when it is installed: zsh looks into other folders of /usr than of /usr/local.
install(CODE [[
  set(EDGELLM_ZSH_FOLDER site-functions)
  if(CMAKE_INSTALL_PREFIX STREQUAL "/usr")
    set(EDGELLM_ZSH_FOLDER vendor-completions)
  endif()]])
install(FILES "${user_files}/zsh/_edgellm"
        DESTINATION "${CMAKE_INSTALL_DATADIR}/zsh/\${EDGELLM_ZSH_FOLDER}")
install(FILES "${user_files}/fish/edgellm.fish"
        DESTINATION "${CMAKE_INSTALL_DATADIR}/fish/vendor_completions.d")

# Found by its name (apps/session/model_folders.h).
install(FILES "${CMAKE_SOURCE_DIR}/model/demo/storyteller.tmac2"
        DESTINATION "${CMAKE_INSTALL_DATADIR}/edgellm/models")

file(GLOB pages CONFIGURE_DEPENDS "${CMAKE_SOURCE_DIR}/docs/*.md" "${CMAKE_SOURCE_DIR}/docs/*.png"
     "${CMAKE_SOURCE_DIR}/docs/*.svg" "${CMAKE_SOURCE_DIR}/docs/openapi.json")
install(FILES "${CMAKE_SOURCE_DIR}/README.md" DESTINATION "${CMAKE_INSTALL_DOCDIR}")
install(FILES ${pages} DESTINATION "${CMAKE_INSTALL_DOCDIR}/docs")
install(FILES "${CMAKE_SOURCE_DIR}/examples/kubernetes_job.yaml" "${CMAKE_SOURCE_DIR}/examples/ray_batch.py"
        DESTINATION "${CMAKE_INSTALL_DOCDIR}/examples")
set(EDGELLM_PACKAGER "edgellm authors <edgellm@localhost>" CACHE STRING
    "Maintainer of the Debian package, \"Name <address>\"")
# Debian's form of LICENSE, and its change log.
install(FILES "${CMAKE_SOURCE_DIR}/tools/packaging/copyright" DESTINATION "${CMAKE_INSTALL_DOCDIR}")
configure_file("${CMAKE_SOURCE_DIR}/tools/packaging/changelog.in" "${CMAKE_BINARY_DIR}/changelog" @ONLY)
execute_process(COMMAND gzip -9nc "${CMAKE_BINARY_DIR}/changelog"
                OUTPUT_FILE "${CMAKE_BINARY_DIR}/changelog.gz" COMMAND_ERROR_IS_FATAL ANY)
install(FILES "${CMAKE_BINARY_DIR}/changelog.gz" DESTINATION "${CMAKE_INSTALL_DOCDIR}")

set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME edgellm)
set(CPACK_PACKAGE_CONTACT "${EDGELLM_PACKAGER}")
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_INSTALL_DEFAULT_DIRECTORY_PERMISSIONS
    OWNER_READ OWNER_WRITE OWNER_EXECUTE GROUP_READ GROUP_EXECUTE WORLD_READ WORLD_EXECUTE)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION science)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)  # Depends, from the libraries that the program is linked to
set(CPACK_DEBIAN_PACKAGE_RECOMMENDS ca-certificates)  # whom edgellm pull trusts
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "inference engine for ternary (BitNet b1.58) language models")
set(CPACK_DEBIAN_PACKAGE_DESCRIPTION
    "edgellm converts a BitNet b1.58 checkpoint, whose weights are -1, 0 or +1,
into one self-contained file and generates text from it, on an NVIDIA GPU or
on any CPU, with the same tokens on both.")
if(CMAKE_CROSSCOMPILING)
  set(CPACK_DEBIAN_PACKAGE_ARCHITECTURE arm64)
  # dpkg-shlibdeps would look for the libraries among the packages of this machine.
  set(CPACK_PROJECT_CONFIG_FILE "${CMAKE_BINARY_DIR}/cross_package.cmake")
  file(WRITE "${CPACK_PROJECT_CONFIG_FILE}" "set(SHLIBDEPS_EXECUTABLE env DEB_HOST_ARCH=arm64
  dpkg-shlibdeps -L${CMAKE_SYSROOT}/shlibs -l${CMAKE_SYSROOT}/usr/lib/aarch64-linux-gnu
  -l${CMAKE_SYSROOT}/lib/aarch64-linux-gnu -l${CMAKE_SYSROOT}/lib)\n")
endif()
include(CPack)

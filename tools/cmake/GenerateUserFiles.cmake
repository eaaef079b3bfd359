# Run after each link of the program: lets it write its manual pages (gzipped, as man wants them)
# and completion scripts, so that what is installed is what this binary says of itself. PROGRAM may
# begin with the emulator that a program for another processor needs.
#
#   cmake -DPROGRAM=.../edgellm -DFOLDER=... -P GenerateUserFiles.cmake
cmake_minimum_required(VERSION 3.25)

file(REMOVE_RECURSE "${FOLDER}")
file(MAKE_DIRECTORY "${FOLDER}/man1")
execute_process(COMMAND ${PROGRAM} help --man-pages "${FOLDER}/man1" COMMAND_ERROR_IS_FATAL ANY)
file(GLOB pages "${FOLDER}/man1/*.1")
execute_process(COMMAND gzip -9n ${pages} COMMAND_ERROR_IS_FATAL ANY)

# The names under which the shells look for them.
foreach(script bash:edgellm zsh:_edgellm fish:edgellm.fish)
  string(REPLACE ":" ";" script "${script}")
  list(GET script 0 shell)
  list(GET script 1 name)
  file(MAKE_DIRECTORY "${FOLDER}/${shell}")
  execute_process(COMMAND ${PROGRAM} completion ${shell} OUTPUT_FILE "${FOLDER}/${shell}/${name}"
                  COMMAND_ERROR_IS_FATAL ANY)
endforeach()

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE RelWithDebInfo CACHE STRING "" FORCE)
endif()
# -O2 with line tables: full debug info doubles compile time and nobody steps through CI binaries.
set(CMAKE_CXX_FLAGS_RELWITHDEBINFO "-O2 -g1")
# A test's own sources: a third less to compile, and what takes time when it runs is in the libraries.
set(CAIRN_TEST_OPTIONS -Og)

find_program(CCACHE_PROGRAM ccache)
if(CCACHE_PROGRAM)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_SOURCE_DIR}/hack/ccache)
endif()

# asan and tsan builds: cmake -DCAIRN_SANITIZER=address,undefined | thread
set(CAIRN_SANITIZER "" CACHE STRING "Sanitizers for the whole build")
if(CAIRN_SANITIZER)
  set(CAIRN_TEST_OPTIONS "")
  # At -O2, and with code to go on after each finding, gcc takes three times as long over the same checks.
  add_compile_options(-O1 -fsanitize=${CAIRN_SANITIZER} -fno-sanitize-recover=undefined
                      -fno-omit-frame-pointer)
  add_link_options(-fsanitize=${CAIRN_SANITIZER})
endif()

# Fuzzing: CC=clang CXX=clang++ cmake -DCAIRN_FUZZ=ON, then x_fuzz -max_total_time=60 NEW tests/fuzz/corpus/x
option(CAIRN_FUZZ "Build the fuzz targets (needs clang)" OFF)
if(CAIRN_FUZZ)
  if(NOT CMAKE_CXX_COMPILER_ID MATCHES "Clang")
    message(FATAL_ERROR "CAIRN_FUZZ needs clang: CC=clang CXX=clang++")
  endif()
  set(CAIRN_TEST_OPTIONS "")
  add_compile_options(-fsanitize=fuzzer-no-link,address,undefined)
  add_link_options(-fsanitize=address,undefined)
endif()

# Symbols are bound when a program starts. Bound lazily, the first open of a process took a third longer. The
# tables of function pointers can then be made read-only.
add_link_options(-Wl,-z,relro,-z,now)

add_library(cairn_warnings INTERFACE)
target_compile_options(cairn_warnings INTERFACE -Wall -Wextra -Wpedantic -Wshadow -Wnon-virtual-dtor
  -Wno-missing-field-initializers  # designated initializers leave out what keeps its default
  -Werror -fno-strict-aliasing)
if(CMAKE_CXX_COMPILER_ID MATCHES "Clang")
  target_compile_options(cairn_warnings INTERFACE -Wthread-safety -Wthread-safety-beta)
endif()

# A room's archive names its objects instead of copying them.
set(CMAKE_CXX_ARCHIVE_CREATE "<CMAKE_AR> qcT <TARGET> <LINK_FLAGS> <OBJECTS>")
set(CMAKE_CXX_ARCHIVE_APPEND "<CMAKE_AR> qT <TARGET> <LINK_FLAGS> <OBJECTS>")

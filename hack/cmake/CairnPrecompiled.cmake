# Headers that nearly every source includes, compiled once for the whole tree. None of ours is among them,
# because a change would then rebuild everything; a target may name those of ours that most of its sources include.
# It has a precompiled header of its own then, and a change to one of those compiles all its sources. Every source still includes what it uses: the option can be
# off, and it is off where flags differ from target to target (clang's fuzzing build).
option(CAIRN_PRECOMPILED "Precompile the headers that every source needs" OFF)
if(CAIRN_PRECOMPILED)
  set(CAIRN_OUTSIDE_HEADERS <algorithm> <atomic> <functional> <map> <memory> <mutex> <optional> <string> <thread>
               <utility> <variant> <vector>
               <absl/container/flat_hash_map.h> <absl/status/statusor.h> <absl/strings/str_cat.h>
               <absl/time/time.h> <absl/types/span.h>)
  file(CONFIGURE OUTPUT ${CMAKE_BINARY_DIR}/precompiled.cc CONTENT "")

  add_library(cairn_precompiled OBJECT ${CMAKE_BINARY_DIR}/precompiled.cc)
  target_link_libraries(cairn_precompiled PRIVATE cairn_warnings)
  target_precompile_headers(cairn_precompiled PRIVATE ${CAIRN_OUTSIDE_HEADERS})

  # Once more for tests: CMake compiles programs with -fPIE, libraries with -fPIC.
  add_library(cairn_test_precompiled OBJECT ${CMAKE_BINARY_DIR}/precompiled.cc)
  set_target_properties(cairn_test_precompiled PROPERTIES POSITION_INDEPENDENT_CODE OFF)
  target_compile_options(cairn_test_precompiled PRIVATE -fPIE ${CAIRN_TEST_OPTIONS})
  target_link_libraries(cairn_test_precompiled PRIVATE cairn_warnings GTest::gtest GTest::gmock)
  target_precompile_headers(cairn_test_precompiled PRIVATE ${CAIRN_OUTSIDE_HEADERS} <gmock/gmock.h> <gtest/gtest.h>)

  # Without this, ccache cannot tell whether a precompiled header is still the same.
  add_compile_options($<$<CXX_COMPILER_ID:GNU>:-fpch-preprocess>)
endif()

# cairn_precompiled(target from [header of ours ...]): with headers of ours `from` does not matter.
function(cairn_precompiled target from)
  if(NOT CAIRN_PRECOMPILED)
    return()
  endif()
  if(NOT ARGN)
    target_precompile_headers(${target} REUSE_FROM ${from})
    return()
  endif()
  # In quotes: CMake would write the whole path, which another checkout does not find in ccache.
  list(TRANSFORM ARGN REPLACE "^([^<].+)" "\"\\1\"")
  target_precompile_headers(${target} PRIVATE ${CAIRN_OUTSIDE_HEADERS} ${ARGN})
endfunction()

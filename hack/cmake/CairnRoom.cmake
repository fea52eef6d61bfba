include(CairnPrecompiled)

# The sources of a room are compiled in batches, which takes half the time. It is for builds that start from little, as
# those of the sanitizers, the fuzzers and a first `make demo`: a change to one source compiles its whole batch again.
# With eight, that is as much as four sources alone, and each room that is slow to compile has batches for several
# processors.
option(CAIRN_UNITY "Compile the sources of each room in batches" OFF)

# cairn_batches(variable target n SOURCES a.cc ... [ALONE x.cc ...]): instead of sources of ours, those that include n of
# them each, by their paths from the root. (The ones that CMake's UNITY_BUILD writes have whole paths, and another
# checkout would find nothing of them in ccache.) What is in ALONE, or is generated, stays by itself.
function(cairn_batches variable target size)
  cmake_parse_arguments(B "" "" "SOURCES;ALONE" ${ARGN})
  set(found "")
  set(number 0)
  foreach(source IN LISTS B_SOURCES)
    get_source_file_property(generated ${source} GENERATED)
    if(generated OR source IN_LIST B_ALONE)
      list(APPEND found ${source})
    else()
      get_filename_component(source ${source} ABSOLUTE)
      file(RELATIVE_PATH source ${CMAKE_SOURCE_DIR} ${source})
      math(EXPR batch "${number} / ${size}")
      string(APPEND text_${batch} "#include \"${source}\"\n")
      math(EXPR number "${number} + 1")
    endif()
  endforeach()
  foreach(batch RANGE ${batch})
    set(file ${CMAKE_CURRENT_BINARY_DIR}/${target}_batch_${batch}.cc)
    file(CONFIGURE OUTPUT ${file} CONTENT "${text_${batch}}" @ONLY)
    list(APPEND found ${file})
  endforeach()
  set(${variable} ${found} PARENT_SCOPE)
endfunction()

# cairn_room(NAME name SOURCES a.cc ... [ALONE x.cc ...] [DEPS cairn_x ...] [LIBS outside::lib ...]
#            [PRECOMPILES room/x.h ...])
#
# A room is one static library. DEPS are the rooms below it (docs/architecture.md, "The house"). Every target
# has the root of the repository on its include path, so it is hack/check_includes.py that refuses an #include
# against the arrows; DEPS decide what is linked.
function(cairn_room)
  cmake_parse_arguments(ROOM "" "NAME" "SOURCES;ALONE;DEPS;LIBS;PRECOMPILES" ${ARGN})
  if(CAIRN_UNITY)
    cairn_batches(ROOM_SOURCES ${ROOM_NAME} 8 SOURCES ${ROOM_SOURCES} ALONE ${ROOM_ALONE})
  endif()
  add_library(${ROOM_NAME} STATIC ${ROOM_SOURCES})
  cairn_precompiled(${ROOM_NAME} cairn_precompiled ${ROOM_PRECOMPILES})
  target_include_directories(${ROOM_NAME} PUBLIC ${CMAKE_SOURCE_DIR})
  target_link_libraries(${ROOM_NAME} PUBLIC ${ROOM_DEPS} ${ROOM_LIBS} PRIVATE cairn_warnings)
endfunction()

# cairn_test(NAME x_test SOURCES x_test.cc ... DEPS cairn_x ... [LABELS gpu guest root full threads] [TIMEOUT s]
#            [PRECOMPILES tests/room/x_fixture.h ...])
#
# One test binary; ctest runs it whole. Labels say where else it runs, or does not:
#   root, full   not in the ordinary tier: needs uid 0; needs minutes or gigabytes
#   gpu          nowhere but on a machine with a GPU (make gpu)
#   guest        nowhere but in a machine with RDMA devices (hack/guest)
#   threads      also under ThreadSanitizer, which learns nothing from a program with a single thread
function(cairn_test)
  cmake_parse_arguments(T "" "NAME;TIMEOUT" "SOURCES;DEPS;LABELS;PRECOMPILES" ${ARGN})
  foreach(label IN LISTS T_LABELS)
    if(NOT label MATCHES "^(gpu|guest|root|full|threads)$")
      message(FATAL_ERROR "${T_NAME}: no label ${label}; there are gpu, guest, root, full and threads")
    endif()
  endforeach()
  add_executable(${T_NAME} ${T_SOURCES})
  foreach(source IN LISTS T_SOURCES)
    get_filename_component(source ${source} ABSOLUTE)
    set_property(GLOBAL APPEND PROPERTY CAIRN_TEST_SOURCES ${source})  # read in tests/CMakeLists.txt
  endforeach()
  if(T_PRECOMPILES)
    list(PREPEND T_PRECOMPILES <gmock/gmock.h> <gtest/gtest.h>)
  endif()
  cairn_precompiled(${T_NAME} cairn_test_precompiled ${T_PRECOMPILES})
  target_compile_options(${T_NAME} PRIVATE ${CAIRN_TEST_OPTIONS})
  target_include_directories(${T_NAME} PRIVATE ${CMAKE_SOURCE_DIR})
  if(CAIRN_SANITIZER MATCHES "undefined")
    # A quarter of what gcc needs for gtest's macros. The rooms' own sources keep these checks, and a null
    # pointer in a test's source is AddressSanitizer's too.
    target_compile_options(${T_NAME} PRIVATE -fno-sanitize=null,alignment,vptr,object-size)
  endif()
  target_link_libraries(${T_NAME} PRIVATE ${T_DEPS} GTest::gtest GTest::gmock GTest::gtest_main
                                          cairn_warnings)
  if(NOT CAIRN_SANITIZER)
    target_link_options(${T_NAME} PRIVATE -Wl,-S)  # copying the line tables takes most of the linker's time
  endif()
  add_test(NAME ${T_NAME} COMMAND ${T_NAME})
  if(NOT T_TIMEOUT)
    set(T_TIMEOUT 300)
  endif()
  set_tests_properties(${T_NAME} PROPERTIES LABELS "${T_LABELS}" TIMEOUT ${T_TIMEOUT})
endfunction()

# cairn_reads_thrift(cairn_x): its objects hold code of libthrift's headers, which reads the types of fields as
# enumerations before anyone can check them, and then refuses those that it does not know.
function(cairn_reads_thrift room)
  if(CAIRN_SANITIZER MATCHES "undefined")
    target_compile_options(${room} PRIVATE -fno-sanitize=enum)
  endif()
endfunction()

# cairn_told(source definition): a definition with a whole path is for one source only, because another checkout does
# not find in ccache what was compiled with it.
function(cairn_told source definition)
  set_source_files_properties(${source} PROPERTIES COMPILE_DEFINITIONS ${definition})
endfunction()

# cairn_golden(x_test): the test reads golden files (tests/golden/golden.h).
function(cairn_golden test)
  target_sources(${test} PRIVATE ${CMAKE_SOURCE_DIR}/tests/golden/golden.cc)
  cairn_told(${CMAKE_SOURCE_DIR}/tests/golden/golden.cc "CAIRN_GOLDEN_FOLDER=\"${CMAKE_SOURCE_DIR}/tests/golden\"")
endfunction()

# cairn_fuzz(NAME x_fuzz DEPS cairn_x ...)
#
# A libFuzzer target from tests/fuzz/x_fuzz.cc. Nothing without CAIRN_FUZZ, which instruments the whole tree:
# what the parsers' own branches do is what guides the fuzzer.
function(cairn_fuzz)
  if(NOT CAIRN_FUZZ)
    return()
  endif()
  cmake_parse_arguments(F "" "NAME" "DEPS" ${ARGN})
  add_executable(${F_NAME} ${CMAKE_SOURCE_DIR}/tests/fuzz/${F_NAME}.cc)
  target_link_libraries(${F_NAME} PRIVATE ${F_DEPS} cairn_warnings)
  target_compile_options(${F_NAME} PRIVATE -fsanitize=fuzzer)
  target_link_options(${F_NAME} PRIVATE -fsanitize=fuzzer)
endfunction()

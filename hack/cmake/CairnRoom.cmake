include(CairnPrecompiled)

# cairn_room(NAME name SOURCES a.cc ... [DEPS cairn_x ...] [LIBS outside::lib ...])
#
# A room is one static library. DEPS are the rooms below it (docs/architecture.md, "The house");
# they are PUBLIC, so that a target sees exactly the headers the house allows it.
# hack/check_includes.py enforces the same arrows on #include lines.
function(cairn_room)
  cmake_parse_arguments(ROOM "" "NAME" "SOURCES;DEPS;LIBS" ${ARGN})
  add_library(${ROOM_NAME} STATIC ${ROOM_SOURCES})
  cairn_precompiled(${ROOM_NAME} cairn_precompiled)
  target_include_directories(${ROOM_NAME} PUBLIC ${CMAKE_SOURCE_DIR})
  target_link_libraries(${ROOM_NAME} PUBLIC ${ROOM_DEPS} ${ROOM_LIBS} PRIVATE cairn_warnings)
endfunction()

# cairn_test(NAME x_test SOURCES x_test.cc ... DEPS cairn_x ... [LABELS root full ...] [TIMEOUT s])
#
# One test binary; ctest runs it whole. Labels "root" and "full" keep it out of the ordinary tier.
function(cairn_test)
  cmake_parse_arguments(T "" "NAME;TIMEOUT" "SOURCES;DEPS;LABELS" ${ARGN})
  add_executable(${T_NAME} ${T_SOURCES})
  foreach(source IN LISTS T_SOURCES)
    get_filename_component(source ${source} ABSOLUTE)
    set_property(GLOBAL APPEND PROPERTY CAIRN_TEST_SOURCES ${source})  # tests/CMakeLists.txt asks
  endforeach()
  cairn_precompiled(${T_NAME} cairn_test_precompiled)
  target_include_directories(${T_NAME} PRIVATE ${CMAKE_SOURCE_DIR})
  target_link_libraries(${T_NAME} PRIVATE ${T_DEPS} GTest::gtest GTest::gmock GTest::gtest_main
                                          cairn_warnings)
  add_test(NAME ${T_NAME} COMMAND ${T_NAME})
  if(NOT T_TIMEOUT)
    set(T_TIMEOUT 300)
  endif()
  set_tests_properties(${T_NAME} PROPERTIES LABELS "${T_LABELS}" TIMEOUT ${T_TIMEOUT})
endfunction()

# cairn_golden(x_test): the test reads golden files (tests/golden/golden.h).
function(cairn_golden test)
  target_sources(${test} PRIVATE ${CMAKE_SOURCE_DIR}/tests/golden/golden.cc)
  target_compile_definitions(${test} PRIVATE "CAIRN_GOLDEN_FOLDER=\"${CMAKE_SOURCE_DIR}/tests/golden\"")
endfunction()

# cairn_fuzz(PARSER room): the libFuzzer target PARSER_fuzz from tests/fuzz/PARSER_fuzz.cc, for a parser that
# lies in `room`. The room is instrumented too: its coverage guides the fuzzer.
#
#   CC=clang CXX=clang++ cmake -S . -B build/fuzz -G Ninja -DCAIRN_FUZZ=ON "-DCAIRN_ROOMS=common;server/facts"
#   zip_fuzz -max_total_time=60 /tmp/new tests/fuzz/corpus/zip
option(CAIRN_FUZZ "Build the fuzz targets (needs clang)" OFF)
if(CAIRN_FUZZ AND NOT CMAKE_CXX_COMPILER_ID MATCHES "Clang")
  message(FATAL_ERROR "CAIRN_FUZZ needs clang: CC=clang CXX=clang++")
endif()

function(cairn_fuzz parser room)
  if(NOT CAIRN_FUZZ)
    return()
  endif()
  target_compile_options(${room} PRIVATE -fsanitize=fuzzer-no-link,address,undefined)
  set(program ${parser}_fuzz)
  add_executable(${program} ${CMAKE_SOURCE_DIR}/tests/fuzz/${program}.cc)
  target_link_libraries(${program} PRIVATE ${room} cairn_warnings)
  target_compile_options(${program} PRIVATE -fsanitize=fuzzer,address,undefined)
  target_link_options(${program} PRIVATE -fsanitize=fuzzer,address,undefined)
endfunction()

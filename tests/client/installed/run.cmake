# cmake -DBUILD=<build tree> -DHERE=<this folder> -DCXX=<compiler> -P run.cmake
set(work "${BUILD}/installed_libcairn")
file(REMOVE_RECURSE "${work}")
function(run)
  execute_process(COMMAND ${ARGV} RESULT_VARIABLE code)
  if(NOT code EQUAL 0)
    message(FATAL_ERROR "failed: ${ARGV}")
  endif()
endfunction()
run("${CMAKE_COMMAND}" --install "${BUILD}" --prefix "${work}/prefix" --component libcairn)
run("${CMAKE_COMMAND}" -S "${HERE}" -B "${work}/build" "-DCMAKE_PREFIX_PATH=${work}/prefix"
    "-DCMAKE_CXX_COMPILER=${CXX}")
run("${CMAKE_COMMAND}" --build "${work}/build")
run("${work}/build/consumer")

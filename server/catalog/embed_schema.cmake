# Writes every NNNN_*.sql of FOLDER into OUTPUT, as the array NAME: its element i brings version i to i + 1.
file(GLOB inputs "${FOLDER}/*.sql")
list(SORT inputs)
set(array "")
set(version 0)
foreach(input IN LISTS inputs)
  math(EXPR version "${version} + 1")
  get_filename_component(name "${input}" NAME)
  string(REGEX MATCH "^[0-9]+" number "${name}")
  string(REGEX REPLACE "^0+" "" number "${number}")
  if(NOT "${number}" STREQUAL "${version}")
    message(FATAL_ERROR "${input}: the next version is ${version}")
  endif()
  file(READ "${input}" text)
  string(APPEND array "R\"SCHEMA(${text})SCHEMA\",\n")
endforeach()
file(WRITE "${OUTPUT}" "#include \"server/catalog/schema.h\"
namespace cairn::catalog {
static const char* const kAll[] = {
${array}};
const absl::Span<const char* const> ${NAME} = kAll;
}  // namespace cairn::catalog
")

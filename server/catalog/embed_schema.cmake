file(READ "${INPUT}" text)
file(WRITE "${OUTPUT}" "namespace cairn::catalog {
extern const char ${NAME}[];
const char ${NAME}[] = R\"SCHEMA(${text})SCHEMA\";
}  // namespace cairn::catalog
")

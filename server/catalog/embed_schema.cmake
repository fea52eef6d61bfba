file(READ "${INPUT}" text)
file(WRITE "${OUTPUT}" "namespace cairn::catalog {
extern const char kSqliteSchema1[];
const char kSqliteSchema1[] = R\"SCHEMA(${text})SCHEMA\";
}  // namespace cairn::catalog
")

// The schemas in sql/, which travel inside the binary: element i brings a database of version i to version i + 1, and
// says so in its table schema_version. Version 0 has no tables.
#pragma once

#include "absl/types/span.h"

namespace cairn::catalog {

extern const absl::Span<const char* const> kSqliteSchemas;
extern const absl::Span<const char* const> kMysqlSchemas;

}  // namespace cairn::catalog

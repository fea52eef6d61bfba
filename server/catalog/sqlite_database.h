// The file of the embedded catalog: opened, checked, and with the schema that this build knows.
#pragma once

#include <string>

#include "common/status.h"
#include "server/catalog/sqlite_statement.h"

namespace cairn::catalog {

// As OpenSqliteCatalog says of `path` and `*note`.
StatusOr<Database> OpenDatabase(const std::string& path, std::string* note);

}  // namespace cairn::catalog

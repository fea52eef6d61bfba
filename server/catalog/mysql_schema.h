// The tables of a catalog in MySQL: whether they are there, and of the version that this build knows.
#pragma once

#include "common/status.h"
#include "server/catalog/mysql_catalog.h"

namespace cairn::catalog {

// A database without tables gets them, and one of an older version what it lacks. FAILED_PRECONDITION where it has tables
// of something else, or of a newer version; PERMISSION_DENIED, naming the versions, where the user may not make them.
Status EnsureMysqlSchema(const MysqlOptions& options);

}  // namespace cairn::catalog

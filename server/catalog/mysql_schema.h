// The tables of a catalog in MySQL: whether they are there, and of the version that this build knows.
#pragma once

#include "common/status.h"
#include "server/catalog/mysql_catalog.h"

namespace cairn::catalog {

// A database without tables gets them. FAILED_PRECONDITION where it has tables of something else, or of another
// version; PERMISSION_DENIED where the user may not make them.
Status EnsureMysqlSchema(const MysqlOptions& options);

}  // namespace cairn::catalog

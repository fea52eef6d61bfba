// The statements of the catalog in MySQL. Each is bound to the cluster first.
#pragma once

#include <cstddef>
#include <string>

#include "server/catalog/tables.h"

namespace cairn::catalog {

// After it the newer version of each row is there. `alone`: of one row that is written in one round trip, and looks at its
// step by itself; it is bound to BoundAlone.
std::string UpsertOf(const Table& table, size_t rows, bool alone = false);
// What one row that is written alone is bound to; `row` begins with the cluster.
Values BoundAlone(const Table& table, const Values& row);

inline constexpr char kOfCheckpoint[] =
    "cluster=? AND job=? AND step=? AND attempt=? AND revision=?";
// Of a step that is removed, in whichever order they came: no older row of a part says that it is here.
const std::string& ForgetParts();
const std::string& ForgetHolders();
inline constexpr char kOldRemovals[] =
    "SELECT step, attempt, revision FROM steps WHERE cluster=? AND job=? AND removed=1 AND "
    "sequence<? ORDER BY sequence LIMIT ?";
inline constexpr char kNewestRemovals[] =
    "SELECT sequence FROM steps WHERE cluster=? AND job=? AND removed=1 "
    "ORDER BY sequence DESC LIMIT 1 OFFSET ?";
// Behind a condition on another table; bound to cluster and job three times.
inline constexpr char kNothingIsThere[] =
    " AND NOT EXISTS (SELECT 1 FROM steps WHERE cluster=? AND job=? AND removed=0)"
    " AND NOT EXISTS (SELECT 1 FROM parts WHERE cluster=? AND job=? AND removed=0)"
    " AND NOT EXISTS (SELECT 1 FROM holders WHERE cluster=? AND job=? AND resident=1)";

}  // namespace cairn::catalog

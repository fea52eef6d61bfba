// A catalog in memory: the whole contract without a database, for tests that need a catalog and not
// SQLite.
#pragma once

#include <map>
#include <memory>
#include <string>

#include "common/mutex.h"
#include "server/catalog/catalog.h"

namespace cairn::catalog {

// The rows. They outlive the catalogs opened over them, as a database outlives its connections.
// Thread-safe.
class MemoryRows {
 public:
  // Until at least `rows` are held.
  void WaitFor(size_t rows);

 private:
  friend class MemoryCatalog;

  Mutex mu_;
  CondVar changed_;
  std::map<std::string, Row> rows_ ABSL_GUARDED_BY(mu_);  // by RowIdentity
};

std::unique_ptr<Catalog> OpenMemoryCatalog(std::shared_ptr<MemoryRows> rows);

}  // namespace cairn::catalog

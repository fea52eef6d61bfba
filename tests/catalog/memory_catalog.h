// A catalog in memory: the whole contract without a database, for tests that need a catalog and not
// SQLite.
#pragma once

#include <functional>
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
  using ByIdentity = std::map<std::string, Row>;  // RowIdentity of each

  // Until `holds` is true of the rows.
  void WaitUntil(const std::function<bool(const ByIdentity&)>& holds);
  ByIdentity Copy();
  // As a database that is restored from a dump.
  void Restore(ByIdentity rows);

 private:
  friend class MemoryCatalog;

  Mutex mu_;
  CondVar changed_;
  ByIdentity rows_ ABSL_GUARDED_BY(mu_);
};

std::unique_ptr<Catalog> OpenMemoryCatalog(std::shared_ptr<MemoryRows> rows,
                                           const Author& author = {});

}  // namespace cairn::catalog

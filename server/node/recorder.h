// Writes what changed into the catalog, in the background.
//
// A class with a thread of its own because the catalog may be slow or away for any time, and nothing
// waits for it. What is still to be written is one row per identity, the newest: an outage of any
// length costs no more than what changed.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "common/mutex.h"
#include "server/catalog/catalog.h"
#include "server/node/options.h"

namespace cairn::node {

using OpenCatalog = std::function<StatusOr<std::unique_ptr<catalog::Catalog>>()>;

class Recorder {
 public:
  // `open` runs on the recorder's thread, again after a failure; null: there is no catalog.
  Recorder(const RecorderOptions& options, OpenCatalog open);
  ~Recorder() { Stop(); }

  void Put(std::vector<catalog::Row> rows);
  // For status: "off", "sqlite: up to date", "sqlite: behind by 12 rows: why".
  std::string State() const;
  // Returns when everything is written, the catalog fails, or `deadline_ms` have passed.
  void Flush(int deadline_ms);
  void Stop();

 private:
  using Batch = std::vector<std::pair<std::string, catalog::Row>>;  // rows by identity

  void Run();
  Batch TakeBatch(int backoff_ms);
  Status Write(const Batch& batch, std::unique_ptr<catalog::Catalog>* catalog) const;
  bool Settle(Batch batch, const Status& status);

  const RecorderOptions options_;
  const OpenCatalog open_;
  mutable Mutex mu_;
  CondVar wake_, idle_;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  bool writing_ ABSL_GUARDED_BY(mu_) = false;
  Status problem_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_map<std::string, catalog::Row> dirty_ ABSL_GUARDED_BY(mu_);
  std::thread thread_;
};

}  // namespace cairn::node

// Writes the catalog behind the engine's back: a dirty set bounded by what exists, one row per
// identity, so an outage of any length costs no more than what changed. Nothing waits for it.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "common/mutex.h"
#include "server/catalog/catalog.h"

namespace cairn::node {

using OpenCatalog = std::function<StatusOr<std::unique_ptr<catalog::Catalog>>()>;

struct RecorderOptions {
  int batch_rows = 500;  // of one transaction
  int retry_min_ms = 100;
  int retry_max_ms = 30'000;
};

class Recorder {
 public:
  // `open` runs on the recorder's thread, again after a failure; null: there is no catalog.
  Recorder(const RecorderOptions& options, OpenCatalog open);
  ~Recorder() { Stop(); }

  void Put(std::vector<catalog::Row> rows);
  // For people: "off", "sqlite: up to date", "sqlite: behind by 12 rows: why".
  std::string State() const;
  // Writes what is left while the catalog answers, at most until `deadline_ms` from now.
  void Flush(int deadline_ms);
  void Stop();

 private:
  void Run();

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

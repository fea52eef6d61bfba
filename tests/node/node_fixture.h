// A node in a test's process: real cache, journal, storage and catalog in a folder of its own, and
// a keeper that is a map. Restart() is the daemon's death without the process's.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "common/mutex.h"
#include "gtest/gtest.h"
#include "server/cache/cache.h"
#include "server/catalog/catalog.h"
#include "server/node/node.h"
#include "server/storage/storage.h"
#include "server/transport/transport.h"

namespace cairn::testing {

// Holds what a keeper holds. Thread-safe.
class MapKeeper : public cache::SlabHolder, public node::SessionHolder {
 public:
  Status Hold(SlabId slab, uint64_t bytes, fact::SlabUse use, int fd) override;
  void Drop(SlabId slab) override;
  void HoldSession(SessionId session, int channel, int pidfd, int progress,
                   std::function<void(Status)> done) override;
  void DropSession(SessionId session) override;

  // As one of an older build: it does not know what its slabs are for.
  void KnowNoUses() { knows_uses_ = false; }

  size_t slabs() const;
  size_t sessions() const;
  std::vector<SlabId> SlabsOf(uint64_t at_least_bytes) const;
  void Forget();  // the node's death, not the daemon's
  // Dups of everything held.
  node::Inherited Inherit(const UniqueFd& journal, const UniqueFd& fd_listener) const;

 private:
  mutable Mutex mu_;
  bool knows_uses_ = true;
  std::map<SlabId, node::HeldSlab> slabs_ ABSL_GUARDED_BY(mu_);
  std::map<SessionId, node::HeldSession> sessions_ ABSL_GUARDED_BY(mu_);
};

class NodeFixture : public ::testing::Test {
 protected:
  void SetUp() override;
  void TearDown() override;

  void StartNode();
  void StopNode();
  void Restart() {
    StopNode();
    ++restarts_;
    StartNode();
  }

  std::string Path(const std::string& name) const { return folder_ + "/" + name; }
  std::string CatalogPath() const { return Path("catalog/catalog.sqlite"); }
  node::Node& node() { return *node_; }
  cache::Cache& cache() { return *cache_; }
  std::unique_ptr<catalog::Catalog> OpenCatalog();  // the node's own, a second time

  node::Options options_;  // change before StartNode
  int restarts_ = 0;
  std::string safe_mode_;
  bool with_storage_ = true;
  // Makes the storage; by default one of files in Path("storage").
  std::function<std::unique_ptr<storage::Storage>()> make_storage_;
  bool with_catalog_ = false;
  transport::Transport* transport_ = nullptr;  // outlives the node
  std::string folder_;
  MapKeeper keeper_;
  UniqueFd journal_, fd_listener_;

 private:
  std::unique_ptr<cache::Cache> cache_;
  std::unique_ptr<storage::Storage> storage_;
  std::unique_ptr<node::Node> node_;
};

// A listening Unix socket.
UniqueFd ListenUnix(const std::string& path, int type);

}  // namespace cairn::testing

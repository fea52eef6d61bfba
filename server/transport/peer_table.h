// The peers that a back end reads from, by address: each is made when it is first read from.
#pragma once

#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/mutex.h"
#include "common/status.h"

namespace cairn::transport {

// `Peer` has Close(), after which it refuses what comes. Thread-safe.
template <typename Peer>
class PeerTable {
 public:
  explicit PeerTable(int max_peers) : max_peers_(static_cast<size_t>(max_peers)) {}
  // Closes all.
  ~PeerTable() {
    {
      MutexLock lock(&mu_);
      closing_ = true;
    }
    // Outside the lock: reads that end now may ask for their peer, which refuses.
    for (const auto& [address, peer] : peers_) peer->Close();
  }
  PeerTable(const PeerTable&) = delete;
  PeerTable& operator=(const PeerTable&) = delete;

  // Good until the table is destroyed. CANCELLED while it is closing, RESOURCE_EXHAUSTED when there are too many peers
  // or one cannot be made.
  StatusOr<Peer*> At(const std::string& address,
                     const std::function<std::unique_ptr<Peer>()>& make) {
    MutexLock lock(&mu_);
    if (closing_) return absl::CancelledError("the transport is closing");
    const auto at = peers_.find(address);
    if (at != peers_.end()) return at->second.get();
    if (peers_.size() >= max_peers_) {
      return absl::ResourceExhaustedError(
          absl::StrCat("address: ", address, " would be one peer more than ", max_peers_));
    }
    try {
      return peers_.emplace(address, make()).first->second.get();
    } catch (const std::exception& e) {
      return absl::ResourceExhaustedError(absl::StrCat("a thread to read with: ", e.what()));
    }
  }
  // Null: it was never read from.
  Peer* Find(const std::string& address) {
    MutexLock lock(&mu_);
    const auto at = peers_.find(address);
    return at == peers_.end() ? nullptr : at->second.get();
  }
  std::vector<Peer*> All() {
    MutexLock lock(&mu_);
    std::vector<Peer*> all;
    for (const auto& [address, peer] : peers_) all.push_back(peer.get());
    return all;
  }

 private:
  const size_t max_peers_;
  Mutex mu_;
  bool closing_ ABSL_GUARDED_BY(mu_) = false;
  std::map<std::string, std::unique_ptr<Peer>> peers_;  // under mu_ until `closing_`
};

}  // namespace cairn::transport

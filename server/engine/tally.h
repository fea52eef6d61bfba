// What is reported of one checkpoint's parts, counted so that one report more changes little: Gathered's.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/container/inlined_vector.h"
#include "server/engine/report.h"

namespace cairn::engine {

// Adds `by` to a count that is kept while it is not 0.
template <typename Map, typename Key>
void AdjustCount(Map* counts, const Key& key, int by) {
  const auto at = counts->try_emplace(key, 0).first;
  at->second += by;
  if (at->second == 0) counts->erase(at);
}

class Tally {
 public:
  ~Tally();
  // Of each part it points at the reports: they stay where they are, and as they are, while they are counted.
  void Add(Rank rank, Writer writer, const PartReport& part);
  void Remove(Rank rank, Writer writer, const PartReport& part);
  // A report that is counted is to say `next`, which has the same number of writers and the same names.
  void Replace(Writer writer, PartReport* part, const PartReport& next);

  bool empty() const { return parts_.empty(); }
  bool Has(Writer writer) const { return parts_.contains(writer); }
  int32_t World() const { return worlds_.empty() ? 0 : worlds_.rbegin()->first; }
  // Writers of World() of which nothing is reported.
  int64_t Lacking() const { return World() - static_cast<int64_t>(parts_.size()); }

  // All but whether it is hopeless. `stored`: some member saw it whole in storage.
  CheckpointVerdict Judge(bool stored);

  // Of the writers it lacks: those that reports mention, and of these the ones that may still commit. Gathered
  // keeps them right while `weighed`.
  bool weighed = false;
  int64_t mentioned = 0, expected = 0;

 private:
  struct Copy {
    Rank rank = kNoRank;
    const PartReport* part = nullptr;
  };
  using Parts = absl::InlinedVector<Copy, 2>;  // by rank
  // Who claims a name, and in how many reports.
  struct Claimed {
    Writer writer = 0;
    int reports = 0;
  };

  void Sum(Writer writer, const Parts& parts, int sign);
  void Claim(Writer writer, const NameHashes& names, int sign);
  void Contest(uint64_t name, std::map<Writer, int>* writers, Writer writer, int sign);
  std::string Conflict() const;
  const std::string& Digest();

  absl::flat_hash_map<Writer, Parts> parts_;
  std::map<int32_t, int> worlds_;  // numbers of writers, each with how many reports say it
  std::map<int, int> copies_;      // in memory: how many writers' parts have so many
  std::set<Writer> disputed_;      // reported with more than one digest
  int64_t bytes_ = 0;
  absl::flat_hash_map<uint64_t, Claimed> claims_;        // names that one writer claims
  std::map<uint64_t, std::map<Writer, int>> contested_;  // and those that several do
  std::map<std::pair<Writer, Writer>, int> conflicts_;   // the two lowest of each contested name
  // Most changes are a copy more, of the same bytes: it is made once.
  std::string digest_;
  bool digest_known_ = false;
};

}  // namespace cairn::engine

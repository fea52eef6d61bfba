// The rows of a ring in a catalog, for tests of who has which rank.
#pragma once

#include <map>
#include <string>
#include <variant>

#include "absl/strings/str_cat.h"
#include "server/engine/membership.h"

namespace cairn::engine {

inline constexpr MonotonicNanos kSecond = kNanosPerSecond;

inline std::string Instance(int number) {
  std::string text = absl::StrCat("instance ", number);
  text.resize(kInstanceBytes, '.');
  return text;
}
inline std::string Address(int number) { return absl::StrCat("10.0.0.", number + 1, ":7400"); }

// The two tables, and what the statements of catalog/mysql_ring.cc do to them.
struct Database {
  int64_t epoch = 0, version = 0;
  std::map<Rank, RankRow> rows;
  int size = 0;

  RingTable Read() const {
    RingTable table{epoch, version, {}};
    for (Rank rank = 0; rank < size; ++rank) {
      const auto row = rows.find(rank);
      table.ranks.push_back(row == rows.end() ? RankRow{} : row->second);
    }
    return table;
  }
  bool Has(const std::string& instance) const {
    for (const auto& [rank, row] : rows) {
      if (row.instance == instance) return true;
    }
    return false;
  }
  // As an operator asks for it. False: somebody has a rank that would go.
  bool Resize(int to) {
    for (const auto& [rank, row] : rows) {
      if (rank >= to && !row.instance.empty()) return false;
    }
    if (to == size) return true;
    size = to;
    ++epoch, ++version;
    return true;
  }
  bool Do(const RingStep& step, const std::string& instance, const std::string& address) {
    if (const auto* make = std::get_if<ring_step::MakeRing>(&step)) {
      if (make->epoch <= epoch) return true;
      epoch = make->epoch;
      size = make->size;
      ++version;
      return true;
    }
    if (const auto* claim = std::get_if<ring_step::Claim>(&step)) {
      RankRow& row = rows[claim->rank];
      if (claim->rank >= size || row.incarnation != claim->of || row.beat != claim->beat) {
        return false;
      }
      if (row.instance != instance && Has(instance)) return false;  // the unique key
      row = {claim->incarnation, instance, address, row.beat + 1};
      ++version;
      return true;
    }
    const auto mine = [&](Rank rank, int64_t incarnation) -> RankRow* {
      const auto row = rows.find(rank);
      const bool is = row != rows.end() && row->second.incarnation == incarnation &&
                      row->second.instance == instance;
      return is ? &row->second : nullptr;
    };
    if (const auto* beat = std::get_if<ring_step::Beat>(&step)) {
      RankRow* const row = mine(beat->rank, beat->incarnation);
      if (row != nullptr) ++row->beat;
      return row != nullptr;
    }
    if (const auto* raise = std::get_if<ring_step::Raise>(&step)) {
      RankRow* const row = mine(raise->rank, raise->of);
      if (row == nullptr) return false;
      row->incarnation = raise->incarnation;
      ++row->beat, ++version;
      return true;
    }
    if (const auto* release = std::get_if<ring_step::Release>(&step)) {
      RankRow* const row = mine(release->rank, release->incarnation);
      if (row == nullptr) return false;
      *row = {row->incarnation + 1, "", "", row->beat + 1};
      ++version;
      return true;
    }
    return false;
  }
};

inline MembershipOptions OptionsOf(int number, int size = 0, Rank wanted = kNoRank) {
  MembershipOptions options;
  options.address = Address(number);
  options.size = size;
  options.wanted = wanted;
  options.uncertain = 17 * kSecond;
  options.new_instance = [number, lives = 0]() mutable {
    return Instance(1000 * (number + 1) + ++lives);
  };
  return options;
}
inline fact::RingSeat NewSeat(int number) {
  fact::RingSeat seat;
  seat.instance = Instance(number);
  return seat;
}

}  // namespace cairn::engine

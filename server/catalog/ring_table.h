// The ring of a cluster as the database has it: its size, and who has which rank. Only a database that all nodes share
// can say that, so there is no SQLite of it. What it means is the engine's (engine/membership.h).
//
// Thread-safe; blocks.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "common/status.h"
#include "server/catalog/mysql_catalog.h"

namespace cairn::catalog {

// A rank. Nobody has it where `instance` is empty.
struct SeatRow {
  int64_t incarnation = 0;
  std::string instance;
  std::string address;
  int64_t beat = 0;
  int64_t beat_age_ms = 0;  // by the database's clock; -1: there was none yet
};
struct RingRows {
  int64_t epoch = 0;  // 0: the cluster has no ring
  int64_t version = 0;
  std::vector<SeatRow> seats;  // by rank, as many as the ring's size
};
// Whose statement it is, and which version of the row it is about.
struct SeatName {
  int32_t rank = 0;
  int64_t incarnation = 0;
  std::string instance;
};

// How a statement that writes ended. `why` is of the last two.
struct SeatWritten {
  enum class How : uint8_t {
    kDone,
    kNot,      // the row is another one: nothing was changed
    kUnknown,  // no answer: it may have been done, or be done yet
    kRefused,  // it was not sent, or the server said that it did not do it
  };
  How how = How::kRefused;
  Status why;
  int64_t version = 0;  // of kDone: the ring's, after it
};

class RingTable {
 public:
  virtual ~RingTable() = default;
  virtual StatusOr<RingRows> Read() = 0;
  // That who has the rank lives.
  virtual SeatWritten Beat(const SeatName& mine) = 0;
  // The rank for `mine`, whose incarnation is the new one, at `address`; where the row is still of incarnation `of` and
  // has `beat`.
  virtual SeatWritten Claim(const SeatName& mine, const std::string& address, int64_t of,
                            int64_t beat) = 0;
  // A greater incarnation for who has the rank.
  virtual SeatWritten Raise(const SeatName& mine, int64_t incarnation) = 0;
  // Nobody has the rank, and the next who gets it is of a greater incarnation than that.
  virtual SeatWritten Release(const SeatName& mine) = 0;
  // Makes the ring, or raises one of a lower epoch; done where it is there.
  virtual SeatWritten Make(int64_t epoch, int32_t size) = 0;
  // The next epoch, of another size (1 to 1,024). FAILED_PRECONDITION, naming them, while somebody has a rank that would
  // go. Returns the epoch.
  virtual StatusOr<int64_t> Resize(int32_t size) = 0;
};

// A connection of its own. As OpenMysqlCatalog, whose schema it needs.
StatusOr<std::unique_ptr<RingTable>> OpenMysqlRing(const MysqlOptions& options);

}  // namespace cairn::catalog

// What members of the ring say to each other, in the engine's values. The wire's form is
// proto/peer.thrift; rpc converts. All of it is state, not events: a message that is lost is made good by
// the next one of its kind, a repeated one changes nothing, and a newer one replaces an older one that has
// not left yet.
//
// The messages to one member are told apart by kind and subject (Topic): of each topic the sender's outbox
// keeps the last whole state and what changed since.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <variant>
#include <vector>

#include "common/clock.h"
#include "common/keys.h"
#include "common/line_record.h"
#include "common/removed.h"
#include "server/engine/report.h"
#include "server/engine/ring.h"

namespace cairn::engine::peer {

// --- between an owner and its backup

// Lists of wants and haves are said whole when something in them changes, and each second; those with more entries than
// this, when something changes, not more often than that.
inline constexpr size_t kLongList = 256;
inline constexpr MonotonicNanos kLongListEvery = kNanosPerSecond / 5;
// So long a list of haves is taken for what its holder has.
inline constexpr MonotonicNanos kListFresh = 2 * kNanosPerSecond;

// A part that the sender wants the receiver to keep.
struct Want {
  PartKey part;
  std::string digest;
  uint64_t manifest_bytes = 0;  // encoded
  uint64_t bytes = 0;           // of its objects, each rounded up to whole pages
  int32_t world_size = 0;
  uint32_t owner_uid = 0, owner_gid = 0;
  bool target = false;  // before the others
  Rank owner =
      kNoRank;  // whose part it is, where the sender stands in for a lost member; else the sender's
  bool operator==(const Want&) const = default;
};

// All that the owner wants kept; it replaces what it said before. `version` grows.
struct WantList {
  uint64_t version = 0;
  std::vector<Want> wants;  // in the order in which they are wanted
  // Of the ring's size that the sender places its parts by; 0: it does not say. Who goes by another one takes no notice
  // of the list, which is said again each second.
  int64_t epoch = 0;
};

// kNoRoom: refused, and what the owner lets go of its other parts would be room.
enum class HaveState : uint8_t { kUnderWay = 0, kHeld = 1, kRefused = 2, kNoRoom = 3 };

struct Have {
  PartKey part;
  std::string digest;
  HaveState state = HaveState::kHeld;
  std::string why;          // refused: the arithmetic
  uint64_t done_bytes = 0;  // under way; of kNoRoom: so many more would have to be free
  bool operator==(const Have&) const = default;
};

// All that the backup holds, is fetching or has refused of the receiver's parts.
struct HaveList {
  uint64_t wants_version = 0;  // of the newest want-list it has seen of the receiver
  uint64_t version = 0;
  std::vector<Have> haves;
};

enum class Fate : uint8_t {
  kKeep = 0,
  kRemoved = 1,
  kAbandoned = 2,
  kSuperseded = 3,
  kSurplus = 4,
  kGivenUp = 5  // the newest of a finished job: the owner has let its own part go, for room
};

// The owner's answer to an entry of a have-list that is not wanted any more: the holder may let it go.
// There is no other reason for it to: absence from a want-list is none.
struct Release {
  PartKey part;
  std::string digest;
  Fate fate = Fate::kRemoved;
  CheckpointKey by;  // superseded: by this protected checkpoint
};
struct ReleaseList {
  uint64_t haves_version = 0;
  std::vector<Release> releases;
};

// --- between a node and a job's home

struct Report {
  ReportDelta delta;
};
// The home lacks what the delta builds on, or asks for the first time: a whole report, please.
struct ReportWanted {
  std::string job;
  uint64_t question =
      0;  // of the sender, each greater than the one before; 0: no matter how old the report is
};
// A home says the same verdict to all members, and it names each of them: the messages share one, which nobody changes.
class SharedVerdict {
 public:
  SharedVerdict(  // NOLINT(google-explicit-constructor): a verdict is said as such
      JobVerdict verdict)
      : verdict_(std::make_shared<const JobVerdict>(std::move(verdict))) {}
  SharedVerdict() : SharedVerdict(JobVerdict()) {}
  const JobVerdict& operator*() const { return *verdict_; }
  const JobVerdict* operator->() const { return verdict_.get(); }
  friend bool operator==(const SharedVerdict& a, const SharedVerdict& b) { return *a == *b; }

 private:
  std::shared_ptr<const JobVerdict> verdict_;  // not null, unless it was moved from
};
struct VerdictSaid {
  SharedVerdict verdict;
  uint64_t answers = 0;  // it was made after the receiver asked this question; 0: none
};
// Asks the home for its verdict about a job of which the sender may hold nothing.
struct VerdictWanted {
  std::string job;
  uint64_t question =
      0;  // of the sender, each greater than the one before; 0: no matter how old it is
};

// Where a checkpoint's parts are, asked of the home: of those that have a name, or of all.
struct PlacesWanted {
  CheckpointKey checkpoint;
  std::string name;  // empty: all
};
struct Place {
  Writer writer = 0;
  std::string digest;
  int32_t world_size = 0;
  uint64_t bytes = 0;  // of its objects, each in whole pages
  Rank owner = kNoRank;
  std::set<Rank> holders;  // in whose memory it is
};
struct PlacesSaid {
  CheckpointKey checkpoint;
  std::string name;
  std::vector<Place> places;
};

// --- decisions of a job (job_record.h encodes them)
struct Record {
  std::string job;
  std::string encoded;
  uint64_t number =
      0;  // of the sender, which grows with what its record says; 0: no answer is wanted
};
// All that the receiver's record of the job said up to this number is in the sender's journal.
struct RecordHeld {
  std::string job;
  uint64_t number = 0;
};

// As Fact is, compiled in peer_messages.cc.
struct Message : std::variant<WantList, HaveList, ReleaseList, Report, ReportWanted, VerdictSaid,
                              VerdictWanted, PlacesWanted, PlacesSaid, Record, RecordHeld> {
  using variant::variant;
  Message(const Message&);
  Message(Message&&) noexcept;
  Message& operator=(const Message&);
  Message& operator=(Message&&) noexcept;
  ~Message();
};

// --- reading a part: a question that has an answer

struct GrantQuestion {
  PartKey part;
  std::string digest;  // empty: whatever is held
};
// One object of the granted part, in the manifest's order.
struct Region {
  std::string descriptor;  // Transport::Describe of its extent
};
struct GrantAnswer {
  uint64_t grant = 0;    // number, for progress and end
  std::string token;     // transport::GrantToken
  std::string manifest;  // encoded
  std::vector<Region> regions;
  int64_t valid_ms = 0;  // without progress
};

}  // namespace cairn::engine::peer

// The messages between keeper and daemon; each is one SOCK_SEQPACKET packet. A keeper outlives the
// binary that started it, so the daemon may be of a later build. The keeper speaks one version, its
// own. A daemon reads that version from the first message and speaks it too, if it is one that it
// still knows; each side refuses a message of any other version, naming both.
//
//   header  {u32 magic, u16 version, u16 type, u32 items, u32 text bytes}, little-endian
//   items   {u64 id, u64 value} each
//   text
// and the descriptors of the items travel with it, in the order of the items.
//
// Version 1 had neither kAnswer nor kServing: a hold had one item, and nobody learnt whether the
// keeper had room for it. Version 2 knew of no slab what it is for. Version 3 had no
// black box: its kBegin has three descriptors.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/fd.h"
#include "common/status.h"

namespace cairn::keeper {

inline constexpr uint16_t kVersion = 4;
inline constexpr uint16_t kOldestVersion = 1;     // of a keeper under which this daemon still works
inline constexpr uint16_t kAnsweringVersion = 2;  // the first that answers holds
inline constexpr uint16_t kUsesVersion = 3;       // the first that knows what a slab is for
inline constexpr uint16_t kBlackBoxVersion = 4;   // the first that holds a black box

enum class MessageType : uint16_t {
  // From the keeper, once for each daemon, in this order; kSlabs and kSessions repeat as needed.
  // One item {restarts, 0}; the text says why the daemon is to start in safe mode, empty if it is
  // not; four descriptors: journal, Thrift listener, fd listener, black box.
  kBegin = 1,
  kSlabs = 2,     // items {use, 0}, then {slab, bytes} of that use and a descriptor each
  kSessions = 3,  // items {session, which}; the descriptors that `which` names
  kEnd = 4,       // one item {slabs, sessions}: how many of each were sent
  // From the keeper, after kEnd: one to each hold, in their order. Item {request, status code}; the
  // text says why not. Code 0: what was handed over outlives this daemon.
  kAnswer = 5,
  // From the daemon, at any time after kEnd.
  kHoldSlab = 16,     // items {slab, bytes}, {request, use}; one descriptor
  kDropSlab = 17,     // item {slab, 0}
  kHoldSession = 18,  // items {session, which}, {request, 0}; the descriptors that `which` names
  kDropSession = 19,  // item {session, 0}
  kServing = 20,  // item {0, 0}; once: from now on an exit of this daemon is no refusal to start
};

// Bits of a session's `which`, in the order of its descriptors.
inline constexpr uint64_t kHasChannel = 1, kHasPidfd = 2, kHasProgress = 4;
inline constexpr uint64_t kFdsPerSession = 3;

struct Item {
  uint64_t id = 0;
  uint64_t value = 0;
};

struct Message {
  uint16_t version = kVersion;
  MessageType type = MessageType::kEnd;
  std::vector<Item> items;
  std::string text;
  std::vector<UniqueFd> fds;  // that came with a received message
};

inline constexpr size_t kMaxText = 1024;
// Holds one item more than kMaxFdsPerMessage and a text of kMaxText.
inline constexpr size_t kMaxMessage = 8192;

// A longer text is cut to kMaxText.
std::string Encode(MessageType type, const std::vector<Item>& items, absl::string_view text = {},
                   uint16_t version = kVersion);

// INVALID_ARGUMENT for bytes that are not a keeper message, and for a message with another number
// of descriptors than its items name; UNIMPLEMENTED for a version outside kOldestVersion … kVersion.
// `fds_lost`: the message came without its descriptors, because this process had no room for them.
StatusOr<Message> Decode(ReceivedMessage received, bool fds_lost = false);

}  // namespace cairn::keeper

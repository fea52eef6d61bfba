// The messages between keeper and daemon; each is one SOCK_SEQPACKET packet. A keeper outlives the
// binary that started it, so the other side may be of another build: each side refuses a message of
// another version than its own, naming both.
//
//   header  {u32 magic, u16 version, u16 type, u32 items, u32 text bytes}, little-endian
//   items   {u64 id, u64 value} each
//   text
// and the descriptors of the items travel with it, in the order of the items.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/fd.h"
#include "common/status.h"

namespace cairn::keeper {

enum class MessageType : uint16_t {
  // From the keeper, once for each daemon, in this order; kSlabs and kSessions repeat as needed.
  // One item {restarts, 0}; the text says why the daemon is to start in safe mode, empty if it is
  // not; three descriptors: journal, Thrift listener, fd listener.
  kBegin = 1,
  kSlabs = 2,     // items {slab, bytes}; a descriptor each
  kSessions = 3,  // items {session, which}; the descriptors that `which` names
  kEnd = 4,       // one item {slabs, sessions}: how many of each were sent
  // From the daemon, at any time after kEnd; the keeper answers none.
  kHoldSlab = 16,     // one item and descriptor as in kSlabs
  kDropSlab = 17,     // item {slab, 0}
  kHoldSession = 18,  // one item as in kSessions
  kDropSession = 19,  // item {session, 0}
};

// Bits of a session's `which`, in the order of its descriptors.
inline constexpr uint64_t kHasChannel = 1, kHasPidfd = 2, kHasProgress = 4;
inline constexpr uint64_t kFdsPerSession = 3;

struct Item {
  uint64_t id = 0;
  uint64_t value = 0;
};

struct Message {
  MessageType type = MessageType::kEnd;
  std::vector<Item> items;
  std::string text;
  std::vector<UniqueFd> fds;  // that came with a received message
};

inline constexpr size_t kMaxText = 1024;
// Holds kMaxFdsPerMessage items and a text of kMaxText.
inline constexpr size_t kMaxMessage = 8192;

// A longer text is cut to kMaxText.
std::string Encode(MessageType type, const std::vector<Item>& items, absl::string_view text = {});

// INVALID_ARGUMENT for bytes that are not a keeper message, and for a message with another number
// of descriptors than its items name; UNIMPLEMENTED for another version.
StatusOr<Message> Decode(ReceivedMessage received);

}  // namespace cairn::keeper

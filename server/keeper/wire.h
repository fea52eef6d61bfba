// What keeper and daemon say to each other, one SOCK_SEQPACKET message each. A keeper outlives the
// binary that started it, so the version is checked: an older keeper refuses a newer daemon and the
// other way.
//
//   header  {u32 magic, u16 version, u16 type, u32 items, u32 text bytes}, little-endian
//   items   {u64 id, u64 value} each
//   text
// with the descriptors of the items, in their order.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/fd.h"
#include "common/status.h"

namespace cairn::keeper {

enum class KeeperMessageType : uint16_t {
  // Keeper → daemon, once, in this order; kEnd closes the inheritance.
  kBegin = 1,     // items {restarts, 0}; text: safe mode; journal, Thrift listener, fd listener
  kSlabs = 2,     // items {slab, bytes}; a descriptor each
  kSessions = 3,  // items {session, which}; the descriptors that `which` names
  kEnd = 4,       // items {slabs, sessions}: how many there were
  // Daemon → keeper, at any time after that; none is answered.
  kHoldSlab = 16,     // one item and descriptor as in kSlabs
  kDropSlab = 17,     // item {slab, 0}
  kHoldSession = 18,  // one item as in kSessions
  kDropSession = 19,  // item {session, 0}
};

// Bits of a session's `which`, in the order of its descriptors.
inline constexpr uint64_t kHasChannel = 1, kHasPidfd = 2, kHasProgress = 4;
inline constexpr uint64_t kFdsPerSession = 3;

struct KeeperItem {
  uint64_t id = 0;
  uint64_t value = 0;
};

struct KeeperMessage {
  KeeperMessageType type = KeeperMessageType::kEnd;
  std::vector<KeeperItem> items;
  std::string text;
  std::vector<UniqueFd> fds;  // of a received one
};

// Long enough for kMaxFdsPerMessage items and a text of kMaxKeeperText.
inline constexpr size_t kMaxKeeperText = 1024;
inline constexpr size_t kMaxKeeperMessage = 8192;

std::string EncodeKeeperMessage(KeeperMessageType type, const std::vector<KeeperItem>& items,
                                absl::string_view text = {});

// INVALID_ARGUMENT for what is no such message or has another number of descriptors than its items
// name; UNIMPLEMENTED for another version.
StatusOr<KeeperMessage> DecodeKeeperMessage(ReceivedMessage received);

}  // namespace cairn::keeper

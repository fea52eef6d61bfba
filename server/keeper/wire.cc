#include "server/keeper/wire.h"

#include <bit>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"

namespace cairn::keeper {
namespace {

struct Header {
  uint32_t magic = 0x50454B43;  // "CKEP"
  uint16_t version = 1;
  uint16_t type = 0;
  uint32_t items = 0;
  uint32_t text_bytes = 0;
};
static_assert(std::endian::native == std::endian::little, "the layout is little-endian");
static_assert(sizeof(Header) == 16 && sizeof(Item) == 16);
static_assert(sizeof(Header) + kMaxFdsPerMessage * sizeof(Item) + kMaxText <= kMaxMessage);

// The number of descriptors that travel with the message; -1 for an unknown type or a malformed
// item.
int64_t ExpectedFds(MessageType type, const std::vector<Item>& items) {
  switch (type) {
    case MessageType::kBegin:
      return items.size() == 1 ? 3 : -1;
    case MessageType::kSlabs:
      return static_cast<int64_t>(items.size());
    case MessageType::kHoldSlab:
      return items.size() == 1 ? 1 : -1;
    case MessageType::kSessions:
    case MessageType::kHoldSession: {
      if (type == MessageType::kHoldSession && items.size() != 1) return -1;
      int64_t fds = 0;
      for (const Item& item : items) {
        if (item.value > (kHasChannel | kHasPidfd | kHasProgress)) return -1;
        fds += std::popcount(item.value);
      }
      return fds;
    }
    case MessageType::kEnd:
    case MessageType::kDropSlab:
    case MessageType::kDropSession:
      return items.size() == 1 ? 0 : -1;
  }
  return -1;
}

}  // namespace

std::string Encode(MessageType type, const std::vector<Item>& items, absl::string_view text) {
  text = text.substr(0, kMaxText);
  Header header;
  header.type = static_cast<uint16_t>(type);
  header.items = static_cast<uint32_t>(items.size());
  header.text_bytes = static_cast<uint32_t>(text.size());
  std::string bytes(reinterpret_cast<const char*>(&header), sizeof(header));
  bytes.append(reinterpret_cast<const char*>(items.data()), items.size() * sizeof(Item));
  bytes.append(text.data(), text.size());
  return bytes;
}

StatusOr<Message> Decode(ReceivedMessage received) {
  const std::string& bytes = received.bytes;
  Header header;
  if (bytes.size() < sizeof(header)) {
    return absl::InvalidArgumentError(
        absl::StrCat("keeper message: ", bytes.size(), " bytes are less than a header"));
  }
  std::memcpy(&header, bytes.data(), sizeof(header));
  if (header.magic != Header().magic) {
    return absl::InvalidArgumentError("keeper message: the magic is wrong");
  }
  if (header.version != Header().version) {
    return absl::UnimplementedError(absl::StrCat("keeper message: version ", header.version,
                                                 "; this build knows ", Header().version));
  }
  const uint64_t item_bytes = uint64_t{header.items} * sizeof(Item);
  if (bytes.size() != sizeof(header) + item_bytes + header.text_bytes) {
    return absl::InvalidArgumentError(absl::StrCat("keeper message: ", bytes.size(), " bytes for ",
                                                   header.items, " items and a text of ",
                                                   header.text_bytes));
  }
  Message message;
  message.type = static_cast<MessageType>(header.type);
  message.items.resize(header.items);
  std::memcpy(message.items.data(), bytes.data() + sizeof(header), item_bytes);
  message.text = bytes.substr(sizeof(header) + item_bytes);
  message.fds = std::move(received.fds);
  if (ExpectedFds(message.type, message.items) != static_cast<int64_t>(message.fds.size())) {
    return absl::InvalidArgumentError(absl::StrCat("keeper message: type ", header.type, " with ",
                                                   header.items, " items came with ",
                                                   message.fds.size(), " descriptors"));
  }
  return message;
}

}  // namespace cairn::keeper

#include "client/gpu/device_saver.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <map>
#include <utility>

#include "common/checksum.h"
#include "common/copy.h"
#include "common/keys.h"

namespace cairn::gpu {
namespace {

constexpr size_t kSlots = 4;
// Where pieces begin in a slot: copies to odd addresses are slow.
constexpr uint64_t kSlotAlignment = 64;

uint64_t Aligned(uint64_t offset) {
  return (offset + kSlotAlignment - 1) / kSlotAlignment * kSlotAlignment;
}

}  // namespace

class DeviceSaver::Reader : public client::DeviceReader {
 public:
  Reader(DeviceSaver* saver, StreamId caller) : saver_(saver), caller_(caller) {}

  void Into(Room room) override {
    MutexLock lock(&mutex_);
    rooms_.push_back(std::move(room));
  }

  Status Read(absl::Span<Piece> pieces) override {
    std::vector<Room> rooms;
    {
      MutexLock lock(&mutex_);
      rooms.swap(rooms_);
    }
    return saver_->Read(caller_, rooms, pieces);
  }

 private:
  DeviceSaver* const saver_;
  const StreamId caller_;
  Mutex mutex_;
  std::vector<Room> rooms_ ABSL_GUARDED_BY(mutex_);
};

// The checksums of pieces, as the device takes them: CRC32C of all, then CRC-32 of those that want one.
class DeviceSaver::Sums {
 public:
  explicit Sums(Device* device) : device_(device) {}

  // Asks for them. UNIMPLEMENTED or RESOURCE_EXHAUSTED: the device takes none now, and was asked for nothing that goes on.
  Status Ask(absl::Span<const Piece> pieces, StreamId stream) {
    std::vector<Range> all, zip;
    for (const Piece& piece : pieces) {
      const Range range{piece.from, piece.bytes};
      all.push_back(range);
      if (piece.wants_zip_crc) zip.push_back(range);
    }
    count_ = all.size() + zip.size();
    CAIRN_ASSIGN_OR_RETURN(there_, NewDeviceBlock(device_, count_ * sizeof(uint32_t)));
    CAIRN_RETURN_IF_ERROR(device_->Checksum(Sum::kCrc32c, all, there_.get(), stream));
    if (zip.empty()) return absl::OkStatus();
    return device_->Checksum(Sum::kZipCrc32, zip, there_.get() + all.size() * sizeof(uint32_t),
                             stream);
  }

  // Waits for them.
  Status Take(absl::Span<Piece> pieces, StreamId stream) {
    std::vector<uint32_t> sums(count_);
    const CopyOut out{there_.get(), sums.data(), count_ * sizeof(uint32_t)};
    CAIRN_RETURN_IF_ERROR(device_->Copy(absl::Span<const CopyOut>(&out, 1), stream));
    CAIRN_RETURN_IF_ERROR(device_->Synchronize(stream));
    auto next = sums.begin();
    for (Piece& piece : pieces) piece.crc32c = *next++;
    for (Piece& piece : pieces) {
      if (piece.wants_zip_crc) piece.zip_crc = *next++;
    }
    return absl::OkStatus();
  }

 private:
  Device* const device_;
  size_t count_ = 0;
  DeviceBlock there_;
};

DeviceSaver::DeviceSaver(Device* device, const SaverOptions& options)
    : device_(device), slabs_(device, options.registered_at_once, For::kWriting) {}

DeviceSaver::~DeviceSaver() = default;

std::unique_ptr<client::DeviceReader> DeviceSaver::After(StreamId caller) {
  return std::make_unique<Reader>(this, caller);
}

SaveStats DeviceSaver::stats() const {
  const MutexLock lock(&mutex_);
  SaveStats stats = stats_;
  stats.slots_because = slabs_.why();
  return stats;
}

Status DeviceSaver::Read(StreamId caller, absl::Span<const Room> rooms, absl::Span<Piece> pieces) {
  if (pieces.empty()) return absl::OkStatus();
  std::vector<Direct> direct;  // whose slabs stay until the device has done all
  std::vector<Piece*> others;
  FindDirect(rooms, pieces, &direct, &others);
  const MutexLock lock(&mutex_);
  CAIRN_RETURN_IF_ERROR(MakeOnce());
  CAIRN_RETURN_IF_ERROR(Begin(caller));
  Sums sums(device_);
  Status summing = sums.Ask(pieces, sums_.get());
  stats_.host_because.clear();
  if (absl::IsUnimplemented(summing) || absl::IsResourceExhausted(summing)) {
    stats_.host_because = std::string(summing.message());
  } else {
    CAIRN_RETURN_IF_ERROR(summing);
  }
  Status status = CopyAll(direct, others, /*sum=*/!summing.ok());
  if (summing.ok()) status.Update(sums.Take(pieces, sums_.get()));
  if (!status.ok()) {  // what the device was asked for may still be under way
    (void)device_->Synchronize(copies_.get());
    (void)device_->Synchronize(sums_.get());
    for (Slot& slot : slots_) slot.parts.clear();
    return status;
  }
  stats_.pieces += pieces.size();
  for (const Piece& piece : pieces) stats_.bytes += piece.bytes;
  if (summing.ok()) stats_.summed_on_device += pieces.size();
  return absl::OkStatus();
}

// What is missing: a call that failed may have made some of it.
Status DeviceSaver::MakeOnce() {
  for (Stream* stream : {&copies_, &sums_}) {
    if (stream->valid()) continue;
    CAIRN_ASSIGN_OR_RETURN(*stream, NewStream(device_));
  }
  if (!reached_.valid()) {
    CAIRN_ASSIGN_OR_RETURN(reached_, NewEvent(device_));
  }
  while (slots_.size() < kSlots) {
    Slot slot;
    StatusOr<PinnedBlock> memory = NewPinnedBlock(device_, kBlockBytes);
    if (absl::IsResourceExhausted(memory.status()) && !slots_.empty()) break;  // it does with these
    CAIRN_RETURN_IF_ERROR(memory.status());
    slot.memory = *std::move(memory);
    CAIRN_ASSIGN_OR_RETURN(slot.copied, NewEvent(device_));
    slots_.push_back(std::move(slot));
  }
  return absl::OkStatus();
}

Status DeviceSaver::Begin(StreamId caller) {
  CAIRN_RETURN_IF_ERROR(device_->Record(reached_.get(), caller));
  CAIRN_RETURN_IF_ERROR(device_->Wait(copies_.get(), reached_.get()));
  return device_->Wait(sums_.get(), reached_.get());
}

void DeviceSaver::FindDirect(absl::Span<const Room> rooms, absl::Span<Piece> pieces,
                             std::vector<Direct>* direct, std::vector<Piece*>* others) {
  std::map<const char*, std::pair<const Room*, std::shared_ptr<StandingSlab>>> ready;
  for (const Room& room : rooms) {
    if (auto slab = slabs_.Want(room.place)) ready[room.data] = {&room, std::move(slab)};
  }
  for (Piece& piece : pieces) {
    others->push_back(&piece);
    const auto after = ready.upper_bound(piece.into);
    if (after == ready.begin()) continue;
    const auto& [room, slab] = std::prev(after)->second;
    const auto offset = static_cast<uint64_t>(piece.into - room->data);
    if (offset > room->bytes || piece.bytes > room->bytes - offset) continue;
    StandingSlab::Use use = slab->Begin(offset, piece.bytes);
    if (use.data() == nullptr) continue;
    direct->push_back({&piece, slab, std::move(use)});
    others->pop_back();
  }
}

Status DeviceSaver::CopyAll(const std::vector<Direct>& direct, const std::vector<Piece*>& others,
                            bool sum) {
  std::vector<CopyOut> copies;
  copies.reserve(direct.size());
  for (const Direct& to : direct) {
    copies.push_back({to.piece->from, const_cast<char*>(to.use.data()), to.piece->bytes});
  }
  CAIRN_RETURN_IF_ERROR(device_->Copy(absl::MakeConstSpan(copies), copies_.get()));
  CAIRN_RETURN_IF_ERROR(CopyBySlots(others, sum));
  CAIRN_RETURN_IF_ERROR(device_->Synchronize(copies_.get()));
  stats_.direct += direct.size();
  if (!sum) return absl::OkStatus();
  for (const Direct& to : direct) {
    Piece* const piece = to.piece;
    piece->crc32c = Crc32c(0, piece->into, piece->bytes);
    if (piece->wants_zip_crc) piece->zip_crc = ZipCrc32(0, piece->into, piece->bytes);
  }
  return absl::OkStatus();
}

Status DeviceSaver::CopyBySlots(const std::vector<Piece*>& pieces, bool sum) {
  if (pieces.empty()) return absl::OkStatus();
  size_t at = 0;
  for (Piece* piece : pieces) {
    Slot* slot = &slots_[at];
    const uint64_t offset = Aligned(slot->used);
    if (offset + piece->bytes > kBlockBytes) {
      CAIRN_RETURN_IF_ERROR(Send(slot));
      at = (at + 1) % slots_.size();
      slot = &slots_[at];
      CAIRN_RETURN_IF_ERROR(Empty(slot, sum));
    }
    slot->parts.push_back({piece, Aligned(slot->used)});
    slot->used = Aligned(slot->used) + piece->bytes;
  }
  CAIRN_RETURN_IF_ERROR(Send(&slots_[at]));
  for (size_t i = 1; i <= slots_.size(); ++i) {  // in the order in which they were sent
    CAIRN_RETURN_IF_ERROR(Empty(&slots_[(at + i) % slots_.size()], sum));
  }
  return absl::OkStatus();
}

Status DeviceSaver::Send(Slot* slot) {
  std::vector<CopyOut> copies;
  copies.reserve(slot->parts.size());
  for (const auto& [piece, offset] : slot->parts) {
    copies.push_back({piece->from, slot->data() + offset, piece->bytes});
  }
  CAIRN_RETURN_IF_ERROR(device_->Copy(absl::MakeConstSpan(copies), copies_.get()));
  return device_->Record(slot->copied.get(), copies_.get());
}

// Waits for what was sent to it, and brings it to where it belongs.
Status DeviceSaver::Empty(Slot* slot, bool sum) {
  slot->used = 0;
  if (slot->parts.empty()) return absl::OkStatus();
  CAIRN_RETURN_IF_ERROR(device_->Synchronize(slot->copied.get()));
  for (const auto& [piece, offset] : std::exchange(slot->parts, {})) {
    const char* const from = slot->data() + offset;
    if (!sum) {
      StreamCopy(piece->into, from, piece->bytes);
    } else if (piece->wants_zip_crc) {
      piece->crc32c = piece->zip_crc = 0;
      CopyCrcs(piece->into, from, piece->bytes, &piece->crc32c, &piece->zip_crc);
    } else {
      piece->crc32c = CopyCrc32c(piece->into, from, piece->bytes, 0);
    }
  }
  return absl::OkStatus();
}

}  // namespace cairn::gpu

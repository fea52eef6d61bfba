// One file: one class, whose threads share all of its state.
#include "client/gpu/weight_stream.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/cpp/process.h"
#include "client/gpu/block_check.h"
#include "client/gpu/buckets.h"
#include "common/checksum.h"

namespace cairn::gpu {
namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;
constexpr uint64_t kFirstBucket = 16 * kMiB;
constexpr uint64_t kSmallestBucket = 64 * kMiB, kLargestBucket = 256 * kMiB;
// Of the device's free memory, what the buffers for views may take together.
constexpr uint64_t kFreeShare = 2;  // one half
constexpr size_t kMostThreads = 8;
constexpr uint64_t kPieceBytes = 64 << 10;
constexpr size_t kViewBuffers = 2;

// What is known of a block while its bucket is under way.
struct BlockState {
  bool on_device = false;
  std::shared_ptr<StandingSlab> standing;  // that it was copied from
  uint32_t first_sum = 0;                  // of its pieces, in its bucket's sums
  std::vector<Gap> gaps;
  std::vector<uint32_t> gap_crcs;
};

struct BucketState {
  std::vector<BlockState> blocks;
  std::vector<Range> ranges;  // what the device takes the checksums of, in the order of the sums
  uint64_t first_sum = 0;     // in the stream's sums
  size_t left = 0;            // blocks whose copies the device was not yet asked for
  std::map<Lane*, EventId> copied;  // of each lane that took part: after its last block
  Event placed;                     // on the caller's stream
  Event done;                       // copied and summed
  bool under_way = false;           // all copies and `done` have been asked for
};

Status InTensor(const client::WantedTensor& tensor, const Status& why) {
  return Status(why.code(), absl::StrCat("tensor \"", tensor.name, "\": ", why.message()));
}

uint64_t BytesOf(const Source& source, uint64_t block) {
  return std::min<uint64_t>(kBlockBytes, source.length() - block * kBlockBytes);
}

std::string WaysOf(const StreamStats& stats) {
  std::vector<std::pair<uint64_t, absl::string_view>> ways = {
      {stats.standing, "standing"}, {stats.direct, "direct"}, {stats.ring, "ring"}};
  std::stable_sort(ways.begin(), ways.end(),
                   [](const auto& a, const auto& b) { return a.first > b.first; });
  std::string words;
  for (const auto& [blocks, way] : ways) {
    if (blocks > 0) absl::StrAppend(&words, words.empty() ? "" : ", ", way);
  }
  return words;
}

Status CheckSources(const client::Plan& plan, const std::vector<std::shared_ptr<Source>>& sources) {
  for (const client::PlannedBlock& block : plan.blocks) {
    if (block.object >= sources.size() || sources[block.object] == nullptr) {
      return absl::InvalidArgumentError(absl::StrCat("sources: the plan reads object ",
                                                     block.object, ", which is not among the ",
                                                     sources.size()));
    }
    const Source& source = *sources[block.object];
    const uint64_t blocks = BlockCount(source.length(), kBlockBytes);
    uint64_t end = 0;
    for (const client::PlannedPiece& piece : block.pieces) {
      end = std::max(end, piece.from + (piece.count - 1) * piece.from_pitch + piece.width);
    }
    if (block.block >= blocks || end > BytesOf(source, block.block)) {
      return absl::InvalidArgumentError(absl::StrCat(source.what(), " has ", source.length(),
                                                     " bytes, fewer than the plan reads"));
    }
    if (source.block_crcs().size() != blocks) {
      return absl::DataLossError(absl::StrCat(source.what(), ": ", source.block_crcs().size(),
                                              " checksums for ", blocks, " blocks"));
    }
  }
  return absl::OkStatus();
}

class WeightStreamImpl {
 public:
  WeightStreamImpl(Streamer* streamer, std::vector<std::shared_ptr<Source>> sources,
                   client::Plan plan, StreamOptions options)
      : lane_pool_(streamer->lanes()),
        verified_(streamer->verified()),
        standing_(streamer->standing()),
        device_(streamer->device()),
        sources_(std::move(sources)),
        plan_(std::move(plan)),
        options_(std::move(options)),
        memory_(plan_.tensors.size()),
        owned_(plan_.tensors.size()) {
    using Check = StreamOptions::Check;
    const bool wanted =
        options_.check == Check::kDevice || (options_.check == Check::kAuto && !device_->IsHost());
    const Status checks = wanted ? streamer->checks() : absl::OkStatus();
    device_checks_ = wanted && checks.ok();
    stats_.host_because = std::string(checks.message());
    direct_ = device_->IsHost() && options_.way != StreamOptions::Way::kRing;
    slabs_.resize(sources_.size());
    places_.resize(sources_.size());
    for (size_t i = 0; options_.way == StreamOptions::Way::kAuto && i < sources_.size(); ++i) {
      if (sources_[i] == nullptr) continue;
      places_[i] = sources_[i]->standing();
      slabs_[i] = standing_->Ready(places_[i]);
    }
  }

  ~WeightStreamImpl() {
    {
      MutexLock lock(&mutex_);
      stopping_ = true;
      changed_.NotifyAll();
    }
    for (std::thread& thread : threads_) thread.join();
    // The device writes into memory that is about to go, and reads slots that the next stream fills.
    for (const std::unique_ptr<Lane>& lane : lanes_) (void)device_->Synchronize(lane->stream());
    if (check_stream_.valid()) (void)device_->Synchronize(check_stream_.get());
    if (!lanes_.empty()) lane_pool_->Return(std::move(lanes_));
  }

  Status Start() {
    CAIRN_RETURN_IF_ERROR(MakeBuckets());
    CAIRN_RETURN_IF_ERROR(PrepareChecks());
    const size_t processors = std::max(1u, std::thread::hardware_concurrency());
    const size_t threads =
        options_.threads > 0 ? options_.threads : std::min(kMostThreads, processors);
    CAIRN_ASSIGN_OR_RETURN(lanes_, lane_pool_->Take(threads));
    CAIRN_RETURN_IF_ERROR(PlaceAhead());
    {
      MutexLock lock(&mutex_);
      stats_.threads = lanes_.size();
    }
    for (const std::unique_ptr<Lane>& lane : lanes_) {
      threads_.emplace_back([this, lane = lane.get()] { Work(lane); });
    }
    return absl::OkStatus();
  }

  StatusOr<std::vector<WeightStream::Tensor>> Next() {
    std::vector<WeightStream::Tensor> tensors;
    const Status status = client::Contain([&]() -> Status {
      CAIRN_ASSIGN_OR_RETURN(tensors, NextBucket());
      return absl::OkStatus();
    });
    if (status.ok()) {
      WantStanding();
      return tensors;
    }
    Fail(status);
    return status;
  }

  StreamStats stats() const {
    MutexLock lock(&mutex_);
    StreamStats stats = stats_;
    stats.way = WaysOf(stats);
    stats.standing_because = standing_->why();
    return stats;
  }

  void Stop() { Fail(absl::CancelledError("the stream was stopped")); }

 private:
  // For later streams. Not before this one has its first layer: mapping and registering takes what that needs.
  void WantStanding() {
    if (std::exchange(wanted_standing_, true)) return;
    for (const client::StandingPlace& place : places_) (void)standing_->Want(place);
  }

  // --- before the first block

  Status MakeBuckets() {
    if (options_.bucket_bytes != 0 && options_.bucket_bytes < kDeviceAlignment) {
      return absl::InvalidArgumentError(absl::StrCat("bucket_bytes: ", options_.bucket_bytes,
                                                     ", and tensors are aligned to ",
                                                     kDeviceAlignment, " bytes"));
    }
    if (!options_.views) {
      const uint64_t bytes = options_.bucket_bytes != 0 ? options_.bucket_bytes : kSmallestBucket;
      buckets_ = CutByBytes(plan_, std::min(kFirstBucket, bytes), bytes);
    } else {
      CAIRN_RETURN_IF_ERROR(MakeBuffers());
      ViewBuckets cut = CutByTensors(plan_, buffer_bytes_, kDeviceAlignment);
      buckets_ = std::move(cut.buckets);
      view_offset_ = std::move(cut.offset);
    }
    states_.resize(buckets_.size());
    return absl::OkStatus();
  }

  // Two buffers, or one when there is no more: then reading waits while the caller uses it.
  Status MakeBuffers() {
    uint64_t bytes = options_.bucket_bytes;
    if (bytes == 0) {
      CAIRN_ASSIGN_OR_RETURN(const DeviceMemory memory, device_->Memory());
      bytes = std::clamp(memory.free / kFreeShare / kViewBuffers, kSmallestBucket, kLargestBucket);
    }
    uint64_t all = 0;  // no more than what is streamed
    for (const client::WantedTensor& tensor : plan_.tensors) {
      all += (tensor.bytes + kDeviceAlignment - 1) / kDeviceAlignment * kDeviceAlignment;
    }
    bytes = std::max<uint64_t>(std::min(bytes, all), kDeviceAlignment);
    for (;;) {
      Status refused;
      while (buffers_.size() < kViewBuffers && refused.ok()) {
        StatusOr<DeviceBlock> buffer = NewDeviceBlock(device_, bytes);
        refused = buffer.status();
        if (buffer.ok()) buffers_.push_back(std::make_shared<DeviceBlock>(*std::move(buffer)));
      }
      if (!refused.ok() && !absl::IsResourceExhausted(refused)) return refused;
      // Somebody else took the memory since it was looked at.
      if (refused.ok() || (!buffers_.empty() && bytes <= kSmallestBucket)) break;
      if (buffers_.empty() && bytes / 2 < kDeviceAlignment) return refused;
      buffers_.clear();
      bytes /= 2;
    }
    buffer_bytes_ = bytes;
    return absl::OkStatus();
  }

  // Where the device puts the checksums of all buckets, and where the host reads them.
  Status PrepareChecks() {
    uint64_t sums = 0;
    for (size_t b = 0; b < buckets_.size(); ++b) {
      BucketState& state = states_[b];
      state.left = buckets_[b].blocks.size();
      state.blocks.resize(state.left);
      state.first_sum = sums;
      uint32_t first = 0;
      for (size_t i = 0; i < state.left && device_checks_; ++i) {
        const client::PlannedBlock& block = buckets_[b].blocks[i];
        const uint64_t bytes = BytesOf(*sources_[block.object], block.block);
        if (!ChecksOnDevice(block, bytes)) continue;
        state.blocks[i].on_device = true;
        state.blocks[i].first_sum = first;
        first += static_cast<uint32_t>(block.pieces.size());
      }
      sums += first;
    }
    CAIRN_ASSIGN_OR_RETURN(check_stream_, NewStream(device_));
    if (sums == 0) return absl::OkStatus();
    CAIRN_ASSIGN_OR_RETURN(sums_on_device_, NewDeviceBlock(device_, sums * sizeof(uint32_t)));
    CAIRN_ASSIGN_OR_RETURN(sums_, NewPinnedBlock(device_, sums * sizeof(uint32_t)));
    return absl::OkStatus();
  }

  // --- giving tensors their memory, in the caller's thread

  size_t MayBePlaced() const {
    if (options_.views) return handed_ + buffers_.size();
    return handed_ + 1 + options_.ahead;
  }

  Status PlaceAhead() {
    while (placed_ < buckets_.size() && placed_ < MayBePlaced()) {
      CAIRN_RETURN_IF_ERROR(Place(placed_));
      MutexLock lock(&mutex_);
      ++placed_;
      changed_.NotifyAll();
    }
    return absl::OkStatus();
  }

  StatusOr<DevicePtr> MemoryFor(uint32_t tensor, size_t bucket) {
    const client::WantedTensor& wanted = plan_.tensors[tensor];
    if (options_.views && view_offset_[tensor] != kNoBuffer) {
      return buffers_[bucket % buffers_.size()]->get() + view_offset_[tensor];
    }
    if (!options_.views && options_.place) return options_.place(wanted);
    if (wanted.bytes == 0) return DevicePtr{0};
    CAIRN_ASSIGN_OR_RETURN(owned_[tensor], NewDeviceBlock(device_, wanted.bytes));
    return owned_[tensor].get();
  }

  // What a view lies in.
  std::shared_ptr<const void> BufferOf(uint32_t tensor, size_t bucket) const {
    if (!options_.views || view_offset_[tensor] == kNoBuffer) return nullptr;
    return buffers_[bucket % buffers_.size()];
  }

  Status Place(size_t bucket) {
    BucketState& state = states_[bucket];
    for (uint32_t tensor : buckets_[bucket].begins) {
      StatusOr<DevicePtr> memory = MemoryFor(tensor, bucket);
      if (!memory.ok()) return InTensor(plan_.tensors[tensor], memory.status());
      memory_[tensor] = *memory;
    }
    for (size_t i = 0; i < state.blocks.size(); ++i) {
      if (!state.blocks[i].on_device) continue;
      for (const client::PlannedPiece& piece : buckets_[bucket].blocks[i].pieces) {
        state.ranges.push_back({memory_[piece.tensor] + piece.to, piece.width});
      }
    }
    if (options_.caller.has_value()) {
      CAIRN_ASSIGN_OR_RETURN(state.placed, NewEvent(device_));
      CAIRN_RETURN_IF_ERROR(device_->Record(state.placed.get(), *options_.caller));
    }
    CAIRN_ASSIGN_OR_RETURN(state.done, NewEvent(device_));
    if (state.left == 0) return SendOff(bucket);
    return absl::OkStatus();
  }

  // --- reading and copying, in the lanes' threads

  struct Job {
    size_t bucket = 0, block = 0;
  };
  // False: there is nothing more to do.
  bool Take(Job* job) {
    MutexLock lock(&mutex_);
    for (;;) {
      if (stopping_ || !status_.ok() || next_.bucket == buckets_.size()) return false;
      if (next_.bucket < placed_) {
        if (next_.block < buckets_[next_.bucket].blocks.size()) {
          *job = next_;
          ++next_.block;
          return true;
        }
        next_ = {next_.bucket + 1, 0};
        continue;
      }
      changed_.Wait(&mutex_);
    }
  }

  void Work(Lane* lane) {
    (void)client::Contain([&] {
      RunOnNode(device_->NumaNode());
      return absl::OkStatus();
    });
    size_t follows = buckets_.size();  // the bucket that the lane's stream has waited for
    Job job;
    while (Take(&job)) {
      const Status status = client::Contain([&]() -> Status {
        if (follows != job.bucket && states_[job.bucket].placed.valid()) {
          CAIRN_RETURN_IF_ERROR(device_->Wait(lane->stream(), states_[job.bucket].placed.get()));
        }
        follows = job.bucket;
        CAIRN_ASSIGN_OR_RETURN(const EventId copied, Bring(job, lane));
        CAIRN_RETURN_IF_ERROR(device_->Record(copied, lane->stream()));
        return Brought(job.bucket, lane, copied);
      });
      if (!status.ok()) Fail(status);
    }
  }

  // Asks for the block's copies; returns the event to record after them.
  StatusOr<EventId> Bring(const Job& job, Lane* lane) {
    const client::PlannedBlock& block = buckets_[job.bucket].blocks[job.block];
    BlockState& state = states_[job.bucket].blocks[job.block];
    const uint64_t bytes = BytesOf(*sources_[block.object], block.block);
    Count(&StreamStats::blocks);
    if (StandingSlab::Use use = UseStanding(block, state, bytes); use.data() != nullptr) {
      return BringStanding(block, bytes, &use, lane, &state);
    }
    const Found found = Look(block, state, bytes);
    if (found.mapped != nullptr && found.good && direct_) {
      Count(&StreamStats::direct);
      if (state.on_device) SumGaps(block, bytes, found.mapped, &state);
      CAIRN_RETURN_IF_ERROR(CopyPieces(block, found.mapped, lane->stream()));
      return lane->reached();
    }
    CAIRN_ASSIGN_OR_RETURN(Slot* const slot, lane->Next());
    Count(&StreamStats::ring);
    char* const at = static_cast<char*>(slot->memory.get());
    if (found.mapped != nullptr && found.good && found.on_host) {
      CAIRN_RETURN_IF_ERROR(CopyPieces(Pack(block, found.mapped, at), at, lane->stream()));
      return slot->copied.get();
    }
    CAIRN_RETURN_IF_ERROR(found.bad ? ReadAgain(block, at)
                                    : Fill(block, found.mapped, found.on_host, at));
    if (state.on_device) SumGaps(block, bytes, at, &state);
    CAIRN_RETURN_IF_ERROR(CopyPieces(block, at, lane->stream()));
    return slot->copied.get();
  }

  // The block in a standing mapping, if it may be copied from there: it is checked after that. The host sees what its own
  // copies read; of a device's copies only the device tells.
  StandingSlab::Use UseStanding(const client::PlannedBlock& block, const BlockState& state,
                                uint64_t bytes) const {
    const std::shared_ptr<StandingSlab>& slab = slabs_[block.object];
    if (slab == nullptr) return {};
    const bool unchecked = options_.check == StreamOptions::Check::kNone;
    const bool by_host = device_->IsHost() && WantedBytes(block) >= bytes / 2;
    if (!state.on_device && !unchecked && !by_host) return {};
    return slab->Begin(places_[block.object].offset + block.block * kBlockBytes, bytes);
  }

  StatusOr<EventId> BringStanding(const client::PlannedBlock& block, uint64_t bytes,
                                  StandingSlab::Use* use, Lane* lane, BlockState* state) {
    Count(&StreamStats::standing);
    if (state->on_device) {
      state->standing = slabs_[block.object];
      SumGaps(block, bytes, use->data(), state);
    }
    const Status copying = CopyPieces(block, use->data(), lane->stream());
    CAIRN_RETURN_IF_ERROR(use->Copied(lane->stream()));  // some of it may be under way
    CAIRN_RETURN_IF_ERROR(copying);
    if (state->on_device || options_.check == StreamOptions::Check::kNone) return lane->reached();
    CAIRN_RETURN_IF_ERROR(device_->Record(lane->reached(), lane->stream()));
    CAIRN_RETURN_IF_ERROR(device_->Synchronize(lane->reached()));
    Count(&StreamStats::checked_on_host);
    if (Crc32c(0, use->data(), bytes) == sources_[block.object]->block_crcs()[block.block]) {
      return lane->reached();
    }
    standing_->Renew(slabs_[block.object], places_[block.object]);
    CAIRN_ASSIGN_OR_RETURN(Slot* const slot, lane->Next());
    Count(&StreamStats::ring);
    char* const at = static_cast<char*>(slot->memory.get());
    CAIRN_RETURN_IF_ERROR(ReadAgain(block, at));
    CAIRN_RETURN_IF_ERROR(CopyPieces(block, at, lane->stream()));
    return slot->copied.get();
  }

  struct Found {
    const char* mapped = nullptr;
    bool on_host = false;  // where the block is checked
    bool good = false;     // it need not be checked any more
    bool bad = false;      // it does not match where it is mapped
  };
  // Looks at a block where it is mapped. One of which little is wanted, or which is copied from there, is checked there;
  // the first once per process.
  Found Look(const client::PlannedBlock& block, const BlockState& state, uint64_t bytes) {
    Source& source = *sources_[block.object];
    Found found;
    found.mapped = source.Mapped(block.block);
    found.on_host = !state.on_device && options_.check != StreamOptions::Check::kNone;
    found.good = !found.on_host;
    if (found.mapped == nullptr || found.good) return found;
    const bool little = WantedBytes(block) < bytes / 2;
    if (!direct_ && !little) return found;
    if (little && verified_->Has(source.memory(), block.block)) {
      found.good = true;
      Count(&StreamStats::checked_before);
    } else if (Crc32c(0, found.mapped, bytes) == source.block_crcs()[block.block]) {
      found.good = true;
      verified_->Add(source.memory(), block.block);
      Count(&StreamStats::checked_on_host);
    } else {
      found.bad = true;
    }
    return found;
  }

  // The whole block into a slot; with `check` it is good then.
  Status Fill(const client::PlannedBlock& block, const char* mapped, bool check, char* slot) {
    Source& source = *sources_[block.object];
    uint32_t crc = 0;
    Status read;
    if (mapped != nullptr) {
      const uint64_t bytes = BytesOf(source, block.block);
      // In pieces that stay in the cache until their checksum is taken, and until the device reads them.
      for (uint64_t done = 0; done < bytes; done += kPieceBytes) {
        const uint64_t n = std::min(kPieceBytes, bytes - done);
        std::memcpy(slot + done, mapped + done, n);
        if (check) crc = Crc32c(crc, slot + done, n);
      }
    } else {
      read = source.Read(block.block, slot, check ? &crc : nullptr);
    }
    if (check) Count(&StreamStats::checked_on_host);
    if (read.ok() && (!check || crc == source.block_crcs()[block.block])) return absl::OkStatus();
    return ReadAgain(block, slot);
  }

  void SumGaps(const client::PlannedBlock& block, uint64_t bytes, const char* at,
               BlockState* state) {
    state->gaps = Gaps(block, bytes);
    state->gap_crcs.clear();
    for (const Gap& gap : state->gaps) {
      state->gap_crcs.push_back(Crc32c(0, at + gap.from, gap.length));
    }
  }

  // Puts what is wanted of a block into a slot, one run after the other; returns where that is now.
  static client::PlannedBlock Pack(const client::PlannedBlock& block, const char* mapped,
                                   char* slot) {
    client::PlannedBlock packed = block;
    uint64_t at = 0;
    for (client::PlannedPiece& piece : packed.pieces) {
      const uint64_t from = std::exchange(piece.from, at);
      for (uint64_t i = 0; i < piece.count; ++i, at += piece.width) {
        std::memcpy(slot + at, mapped + from + i * piece.from_pitch, piece.width);
      }
      piece.from_pitch = piece.width;
    }
    return packed;
  }

  void Count(uint64_t StreamStats::*what) {
    MutexLock lock(&mutex_);
    ++(stats_.*what);
  }

  Status ReadAgain(const client::PlannedBlock& block, char* slot) {
    Count(&StreamStats::read_again);
    const Status read = sources_[block.object]->ReadChecked(block.block, slot);
    return read.ok() ? read : InTensor(plan_.tensors[block.pieces.front().tensor], read);
  }

  Status CopyPieces(const client::PlannedBlock& block, const char* at, StreamId stream) {
    std::vector<CopyIn> runs;
    uint64_t bytes = 0;
    for (const client::PlannedPiece& piece : block.pieces) {
      const DevicePtr to = memory_[piece.tensor] + piece.to;
      bytes += piece.width * piece.count;
      if (piece.count == 1) {
        runs.push_back({at + piece.from, to, piece.width});
        continue;
      }
      const Rows rows{piece.width, piece.count, piece.from_pitch, piece.to_pitch};
      CAIRN_RETURN_IF_ERROR(device_->CopyRows(at + piece.from, to, rows, stream));
    }
    if (!runs.empty()) CAIRN_RETURN_IF_ERROR(device_->Copy(absl::MakeConstSpan(runs), stream));
    MutexLock lock(&mutex_);
    stats_.bytes += bytes;
    return absl::OkStatus();
  }

  // The device has been asked to copy one more block of the bucket.
  Status Brought(size_t bucket, Lane* lane, EventId copied) {
    BucketState& state = states_[bucket];
    {
      MutexLock lock(&mutex_);
      // The lane records this event again for a later block; waiting for that one waits for this one, too.
      state.copied[lane] = copied;
      if (--state.left > 0) return absl::OkStatus();
    }
    return SendOff(bucket);
  }

  // All of the bucket's copies have been asked for: the checksums of what they bring, and the bucket's end.
  Status SendOff(size_t bucket) {
    BucketState& state = states_[bucket];
    for (const auto& [lane, copied] : state.copied) {
      CAIRN_RETURN_IF_ERROR(device_->Wait(check_stream_.get(), copied));
    }
    CAIRN_RETURN_IF_ERROR(SumUp(state.ranges, state.first_sum));
    CAIRN_RETURN_IF_ERROR(device_->Record(state.done.get(), check_stream_.get()));
    MutexLock lock(&mutex_);
    state.under_way = true;
    changed_.NotifyAll();
    return absl::OkStatus();
  }

  // Asks for the ranges' checksums, from `first_sum` on, here in sums_.
  Status SumUp(absl::Span<const Range> ranges, uint64_t first_sum) {
    if (ranges.empty()) return absl::OkStatus();
    const DevicePtr there = sums_on_device_.get() + first_sum * sizeof(uint32_t);
    CAIRN_RETURN_IF_ERROR(device_->Checksum(Sum::kCrc32c, ranges, there, check_stream_.get()));
    const CopyOut out{there, sums() + first_sum, ranges.size() * sizeof(uint32_t)};
    return device_->Copy(absl::Span<const CopyOut>(&out, 1), check_stream_.get());
  }

  uint32_t* sums() const { return static_cast<uint32_t*>(sums_.get()); }

  void Fail(const Status& status) {
    MutexLock lock(&mutex_);
    if (status_.ok()) status_ = status;
    changed_.NotifyAll();
  }

  // --- handing out

  StatusOr<std::vector<WeightStream::Tensor>> NextBucket() {
    std::vector<WeightStream::Tensor> tensors;
    while (tensors.empty()) {
      {
        MutexLock lock(&mutex_);
        CAIRN_RETURN_IF_ERROR(status_);
      }
      CAIRN_RETURN_IF_ERROR(PlaceAhead());
      if (handed_ == buckets_.size()) return tensors;
      {
        MutexLock lock(&mutex_);
        while (status_.ok() && !states_[handed_].under_way) changed_.Wait(&mutex_);
        CAIRN_RETURN_IF_ERROR(status_);
      }
      CAIRN_RETURN_IF_ERROR(device_->Synchronize(states_[handed_].done.get()));
      CAIRN_RETURN_IF_ERROR(Compare(handed_));
      for (uint32_t tensor : buckets_[handed_].ends) {
        tensors.push_back({&plan_.tensors[tensor], memory_[tensor], std::move(owned_[tensor]),
                           BufferOf(tensor, handed_)});
      }
      ++handed_;
      MutexLock lock(&mutex_);  // the lanes look here for blocks that are left
      states_[handed_ - 1] = {};
      buckets_[handed_ - 1] = {};
      ++stats_.buckets;
    }
    return tensors;
  }

  Status Compare(size_t bucket) {
    const BucketState& state = states_[bucket];
    uint64_t checked = 0;
    for (size_t i = 0; i < state.blocks.size(); ++i) {
      if (!state.blocks[i].on_device) continue;
      ++checked;
      const client::PlannedBlock& block = buckets_[bucket].blocks[i];
      if (!Matches(block, state, i)) CAIRN_RETURN_IF_ERROR(Mend(block, bucket, i));
    }
    MutexLock lock(&mutex_);
    stats_.checked_on_device += checked;
    return absl::OkStatus();
  }

  bool Matches(const client::PlannedBlock& block, const BucketState& state, size_t i) const {
    const BlockState& of = state.blocks[i];
    return CombineBlock(block, of.gaps, of.gap_crcs, sums() + state.first_sum + of.first_sum) ==
           sources_[block.object]->block_crcs()[block.block];
  }

  // A block that did not arrive as it was saved: once more, from a copy that is good.
  Status Mend(const client::PlannedBlock& block, size_t bucket, size_t i) {
    BucketState& state = states_[bucket];
    BlockState& of = state.blocks[i];
    if (!mending_.valid()) {
      CAIRN_ASSIGN_OR_RETURN(mending_, NewPinnedBlock(device_, kBlockBytes));
    }
    if (of.standing != nullptr) {
      standing_->Renew(std::exchange(of.standing, nullptr), places_[block.object]);
      Count(&StreamStats::ring);
    }
    char* const slot = static_cast<char*>(mending_.get());
    CAIRN_RETURN_IF_ERROR(ReadAgain(block, slot));
    for (size_t g = 0; g < of.gaps.size(); ++g) {
      of.gap_crcs[g] = Crc32c(0, slot + of.gaps[g].from, of.gaps[g].length);
    }
    CAIRN_RETURN_IF_ERROR(CopyPieces(block, slot, check_stream_.get()));
    CAIRN_RETURN_IF_ERROR(
        SumUp(absl::MakeConstSpan(state.ranges).subspan(of.first_sum, block.pieces.size()),
              state.first_sum + of.first_sum));
    CAIRN_RETURN_IF_ERROR(device_->Synchronize(check_stream_.get()));
    if (Matches(block, state, i)) return absl::OkStatus();
    return InTensor(plan_.tensors[block.pieces.front().tensor],
                    absl::DataLossError(absl::StrCat(
                        sources_[block.object]->what(), ": block ", block.block,
                        " is good on the host and does not match its checksum on the device")));
  }

  // Constant after Start, but for what stands at a bucket or tensor: its thread is the one that has it.
  LanePool* const lane_pool_;
  VerifiedBlocks* const verified_;
  StandingSlabs* const standing_;
  bool wanted_standing_ = false;  // Next's alone
  Device* const device_;
  const std::vector<std::shared_ptr<Source>> sources_;
  client::Plan plan_;
  const StreamOptions options_;
  bool device_checks_ = false;
  bool direct_ = false;
  std::vector<client::StandingPlace> places_;         // of each source
  std::vector<std::shared_ptr<StandingSlab>> slabs_;  // there; null: none
  std::vector<Bucket> buckets_;
  std::vector<BucketState> states_;  // `left`, `copied` and `under_way`: guarded by mutex_
  std::vector<DevicePtr> memory_;    // of each tensor, once its first bucket is placed
  std::vector<DeviceBlock> owned_;
  std::vector<std::shared_ptr<DeviceBlock>> buffers_;
  std::vector<uint64_t> view_offset_;
  uint64_t buffer_bytes_ = 0;
  DeviceBlock sums_on_device_;
  PinnedBlock sums_;
  Stream check_stream_;
  std::vector<std::unique_ptr<Lane>> lanes_;
  std::vector<std::thread> threads_;

  // The caller's thread alone.
  size_t handed_ = 0;
  PinnedBlock mending_;

  mutable Mutex mutex_;
  CondVar changed_;
  // Written by the caller's thread alone, which reads it without the lock.
  size_t placed_ = 0;
  Job next_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  Status status_ ABSL_GUARDED_BY(mutex_);
  StreamStats stats_ ABSL_GUARDED_BY(mutex_);
};

// A forked child has none of the stream's threads, and its locks may be held for ever: there it is left as it is.
class ForkSafe : public WeightStream {
 public:
  explicit ForkSafe(std::unique_ptr<WeightStreamImpl> stream) : stream_(std::move(stream)) {}
  ~ForkSafe() override {
    if (!InItsProcess()) (void)stream_.release();
  }
  StatusOr<std::vector<Tensor>> Next() override {
    if (!InItsProcess()) {
      return absl::FailedPreconditionError("this process was forked after the stream began");
    }
    return stream_->Next();
  }
  void Stop() override {
    if (InItsProcess()) stream_->Stop();
  }
  StreamStats stats() const override { return InItsProcess() ? stream_->stats() : StreamStats{}; }

 private:
  bool InItsProcess() const { return client::ThisPid() == process_; }

  const pid_t process_ = client::ThisPid();
  std::unique_ptr<WeightStreamImpl> stream_;
};

}  // namespace

Streamer::Streamer(std::unique_ptr<Device> device, const StreamerOptions& options)
    : device_(std::move(device)),
      lanes_(device_.get(), options.lanes, options.slots),
      standing_(device_.get(), options.standing_chunk_bytes) {}

Status Streamer::checks() {
  MutexLock lock(&mutex_);
  // That memory was short is no answer for ever.
  if (!checks_.has_value() || absl::IsResourceExhausted(*checks_)) {
    checks_ = [&]() -> Status {
      CAIRN_ASSIGN_OR_RETURN(const DeviceBlock sums,
                             NewDeviceBlock(device_.get(), kDeviceAlignment));
      const Range range{sums.get(), sizeof(uint32_t)};
      CAIRN_RETURN_IF_ERROR(device_->Checksum(Sum::kCrc32c, {&range, 1},
                                              sums.get() + sizeof(uint32_t), kDefaultStream));
      return device_->Synchronize(kDefaultStream);
    }();
  }
  return *checks_;
}

StatusOr<std::unique_ptr<WeightStream>> Streamer::Start(
    std::vector<std::shared_ptr<Source>> sources, client::Plan plan, StreamOptions options) {
  CAIRN_RETURN_IF_ERROR(CheckSources(plan, sources));
  auto stream = std::make_unique<WeightStreamImpl>(this, std::move(sources), std::move(plan),
                                                   std::move(options));
  CAIRN_RETURN_IF_ERROR(client::Contain([&] { return stream->Start(); }));
  return std::make_unique<ForkSafe>(std::move(stream));
}

}  // namespace cairn::gpu

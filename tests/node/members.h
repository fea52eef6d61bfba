// Members of a ring in a test's process: owners that have a part in memory and grant it, and a reader
// whose mover fetches it over TCP. Between them, where the wire would be, function calls.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "common/checksum.h"
#include "common/mutex.h"
#include "server/cache/cache.h"
#include "server/node/attached.h"
#include "server/node/granter.h"
#include "server/node/links.h"
#include "server/node/mover.h"
#include "server/transport/tcp_transport.h"
#include "tests/transport/faulty_transport.h"

namespace cairn::testing {

class NoHolder : public cache::SlabHolder {
 public:
  Status Hold(SlabId, uint64_t, fact::SlabUse, int) override { return absl::OkStatus(); }
  void Drop(SlabId) override {}
};

// What the engine was told. Thread-safe.
class Events {
 public:
  std::function<void(engine::Event)> Post() {
    return [this](engine::Event event) {
      MutexLock lock(&mu_);
      events_.push_back(std::move(event));
      come_.NotifyAll();
    };
  }
  // The oldest of the kind, which is told once; waits for it.
  template <typename E>
  E Next() {
    MutexLock lock(&mu_);
    for (;;) {
      for (auto at = events_.begin(); at != events_.end(); ++at) {
        if (E* event = std::get_if<E>(&*at)) {
          E found = std::move(*event);
          events_.erase(at);
          return found;
        }
      }
      come_.Wait(&mu_);
    }
  }
  template <typename E>
  size_t Count() const {
    MutexLock lock(&mu_);
    size_t count = 0;
    for (const engine::Event& event : events_) count += std::holds_alternative<E>(event);
    return count;
  }

 private:
  mutable Mutex mu_;
  CondVar come_;
  std::deque<engine::Event> events_ ABSL_GUARDED_BY(mu_);
};

inline std::string Noise(size_t bytes, unsigned seed) {
  std::string noise(bytes, '\0');
  std::mt19937_64 random(seed);
  size_t at = 0;
  for (; at + 8 <= bytes; at += 8) {
    const uint64_t word = random();
    std::copy_n(reinterpret_cast<const char*>(&word), 8, noise.data() + at);
  }
  for (; at < bytes; ++at) noise[at] = static_cast<char>(random());
  return noise;
}

// A cache with a transport before it.
struct Memory {
  explicit Memory(engine::Rank rank, std::shared_ptr<transport::TransportFaults> faults = nullptr) {
    cache = *cache::Cache::Start({}, &holder);
    transport::TcpReaderOptions reader;
    reader.self = {rank, 0};
    transport = *transport::TcpTransport::Start({}, reader);
    if (faults != nullptr) {
      transport = transport::MakeFaultyTransport(std::move(transport), std::move(faults));
    }
    attached = std::make_unique<node::Attached>(cache.get(), transport.get());
  }
  void MakeSlab(SlabId slab, uint64_t bytes) {
    Events made;
    cache->Make(slab, bytes, fact::SlabUse::kObjects, cache::Pages::kUrgently,
                [post = made.Post(), slab](Status status) {
                  post(engine::event::SlabMade{slab, std::move(status)});
                });
    EXPECT_TRUE(made.Next<engine::event::SlabMade>().status.ok());
  }
  std::string Read(const ExtentRef& extent, uint64_t length) const {
    std::string bytes(length, '\0');
    EXPECT_TRUE(cache->Read(extent.slab, extent.offset, absl::MakeSpan(bytes)).ok());
    return bytes;
  }

  NoHolder holder;
  std::unique_ptr<cache::Cache> cache;
  std::unique_ptr<transport::Transport> transport;
  std::unique_ptr<node::Attached> attached;
};

// The part that every owner has: each object in a slab at an offset of its own.
struct Part {
  PartKey key;
  std::vector<std::string> objects;
  Manifest manifest;
  uint64_t slab_bytes = 0;  // of each object's place at the next whole page

  explicit Part(std::vector<size_t> lengths, const std::string& job = "job") {
    manifest.job = job;
    manifest.step = 7;
    manifest.attempt = 1;
    for (size_t i = 0; i < lengths.size(); ++i) {
      objects.push_back(Noise(lengths[i], static_cast<unsigned>(i + 1)));
      ObjectEntry entry;
      entry.name = absl::StrCat("object-", 1000 + i);
      entry.length = lengths[i];
      entry.block_crcs = BlockCrcs(objects[i].data(), lengths[i], kBlockBytes);
      manifest.objects.push_back(std::move(entry));
      slab_bytes += (lengths[i] + kPageBytes - 1) / kPageBytes * kPageBytes;
    }
    slab_bytes = std::max<uint64_t>(slab_bytes, kPageBytes);
    key = manifest.Part();
  }
  uint64_t bytes() const { return manifest.TotalBytes(); }
  std::string digest() const { return ManifestDigest(EncodeManifest(manifest)); }
};

class Owner {
 public:
  Owner(engine::Rank rank, const Part& part, node::GranterOptions options = {})
      : memory_(rank), address_(memory_.transport->Address()) {
    granter_ = std::make_unique<node::Granter>(options, memory_.transport.get(),
                                               memory_.attached.get(), RealClock(), events.Post());
    constexpr SlabId kSlab = 5;
    constexpr uint64_t kBefore = kPageBytes;  // nothing lies where the reader puts it
    memory_.MakeSlab(kSlab, part.slab_bytes + kBefore);
    std::vector<ExtentRef> extents;
    uint64_t at = kBefore;
    for (const std::string& object : part.objects) {
      const uint64_t length = (object.size() + kPageBytes - 1) / kPageBytes * kPageBytes;
      extents.push_back({kSlab, at, length});
      EXPECT_TRUE(memory_.cache->Write(kSlab, at, object).ok());
      at += length;
    }
    table_ = TableOf(part.manifest, std::move(extents));
  }
  ~Owner() { granter_->Stop(); }

  // As the node does it, with an engine that has the part.
  StatusOr<node::PeerLinks::Granted> Grant(const engine::MemberId& reader) {
    if (dead_) return absl::UnavailableError("it is dead");
    CAIRN_RETURN_IF_ERROR(granter_->Admit());
    const uint64_t grant = ++granted;
    granter_->Expect(grant);
    CAIRN_ASSIGN_OR_RETURN(auto answer, granter_->Give(reader, grant, *table_));
    return node::PeerLinks::Granted{std::move(answer), address_};
  }
  void EndGrant(const engine::MemberId& reader, node::EndedGrant ended) {
    granter_->EndFor(reader, ended);
  }
  // Its bytes turn bad in memory.
  void Spoil(size_t object, uint64_t offset) {
    const ExtentRef& extent = table_->extents[object];
    std::string byte = memory_.Read({extent.slab, extent.offset + offset, 1}, 1);
    byte[0] = static_cast<char>(byte[0] ^ 1);
    EXPECT_TRUE(memory_.cache->Write(extent.slab, extent.offset + offset, byte).ok());
  }
  void Die() {
    dead_ = true;
    granter_->Stop();
    memory_.transport.reset();
  }
  node::Granter& granter() { return *granter_; }
  Memory& memory() { return memory_; }
  const PartTable& table() const { return *table_; }

  Events events;
  std::atomic<uint64_t> granted = 0;

 private:
  Memory memory_;
  const std::string address_;
  std::atomic<bool> dead_ = false;
  std::shared_ptr<const PartTable> table_;
  std::unique_ptr<node::Granter> granter_;
};

inline const engine::MemberId kReader = {.rank = 9, .incarnation = 3, .instance = "reader"};

// Thread-safe once all owners stand in it.
class Neighbours : public node::PeerLinks {
 public:
  void Tell(engine::Rank, engine::peer::Message) override {}
  StatusOr<Granted> AskGrant(engine::Rank rank, const engine::peer::GrantQuestion&,
                             MonotonicNanos) override {
    const auto at = owners.find(rank);
    if (at == owners.end()) return absl::NotFoundError("it does not have the part");
    StatusOr<Granted> granted = at->second->Grant(kReader);
    const auto elsewhere = addresses.find(rank);
    if (granted.ok() && elsewhere != addresses.end()) granted->address = elsewhere->second;
    return granted;
  }
  StatusOr<std::string> AskTransport(engine::Rank, const std::string&, MonotonicNanos) override {
    return absl::UnimplementedError("these owners' transport is asked nothing");
  }
  void EndGrant(engine::Rank rank, node::EndedGrant ended) override {
    const auto at = owners.find(rank);
    if (at != owners.end() && !loses_ends) at->second->EndGrant(kReader, ended);
  }
  void SetView(const engine::RingView&) override {}
  std::string Problem() const override { return ""; }
  std::map<engine::Rank, Owner*> owners;
  std::map<engine::Rank, std::string> addresses;  // of data, instead of the owners' own
  std::atomic<bool> loses_ends = false;           // of grants, on their way
};

class Reader {
 public:
  explicit Reader(node::MoverOptions options = {})
      : faults(std::make_shared<transport::TransportFaults>()), memory(kReader.rank, faults) {
    links.Set(&neighbours);
    mover =
        std::make_unique<node::Mover>(options, &links, memory.transport.get(), memory.cache.get(),
                                      memory.attached.get(), RealClock(), events.Post());
  }
  ~Reader() {
    faults->Clear();
    mover->Stop();
    links.Set(nullptr);
    memory.attached->DetachAll();
  }

  engine::action::Fetch FetchOf(const Part& part, std::vector<engine::Rank> sources,
                                uint64_t fetch = 1) {
    const SlabId slab = 50 + fetch;
    memory.MakeSlab(slab, part.slab_bytes);
    engine::action::Fetch asked;
    asked.fetch = fetch;
    asked.part = part.key;
    asked.digest = part.digest();
    asked.manifest_bytes = 1 << 20;
    asked.slab = slab;
    asked.slab_bytes = part.slab_bytes;
    asked.sources = std::move(sources);
    return asked;
  }
  engine::event::Fetched Fetch(const Part& part, std::vector<engine::Rank> sources) {
    mover->Start(FetchOf(part, std::move(sources)));
    return events.Next<engine::event::Fetched>();
  }
  void ExpectBytesOf(const Part& part, const PartTable& table) const {
    ASSERT_EQ(table.extents.size(), part.objects.size());
    for (size_t i = 0; i < part.objects.size(); ++i) {
      EXPECT_EQ(table.extents[i].offset % kPageBytes, 0u);
      if (part.objects[i].empty()) continue;
      EXPECT_TRUE(memory.Read(table.extents[i], part.objects[i].size()) == part.objects[i])
          << "object " << i;
    }
  }

  std::shared_ptr<transport::TransportFaults> faults;
  Events events;
  Memory memory;
  Neighbours neighbours;
  node::Links links;
  std::unique_ptr<node::Mover> mover;
};

}  // namespace cairn::testing

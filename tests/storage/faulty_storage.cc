#include "tests/storage/faulty_storage.h"

#include <utility>

namespace cairn::storage {
namespace {

class FaultyReader final : public Reader {
 public:
  FaultyReader(std::unique_ptr<Reader> inner, std::shared_ptr<StorageFaults> faults)
      : inner_(std::move(inner)), faults_(std::move(faults)) {}

  uint64_t length() const override { return inner_->length(); }
  Status ReadAt(uint64_t offset, absl::Span<char> into) const override {
    return faults_->Run<Status>(StorageCall::kReadAt, [&] { return inner_->ReadAt(offset, into); });
  }
  std::optional<int> Descriptor() const override { return inner_->Descriptor(); }

 private:
  const std::unique_ptr<Reader> inner_;
  const std::shared_ptr<StorageFaults> faults_;
};

class FaultyStorage final : public Storage {
 public:
  FaultyStorage(std::unique_ptr<Storage> inner, std::shared_ptr<StorageFaults> faults)
      : inner_(std::move(inner)), faults_(std::move(faults)) {}

  StatusOr<RootIdentity> Identity() override {
    return faults_->Run<StatusOr<RootIdentity>>(StorageCall::kIdentity,
                                                [&] { return inner_->Identity(); });
  }
  void Expect(const std::string& id) override { inner_->Expect(id); }
  Status WriteParts(const CheckpointKey& checkpoint, Owner owner,
                    const std::vector<PartToWrite>& parts) override {
    return faults_->Run<Status>(StorageCall::kWriteParts,
                                [&] { return inner_->WriteParts(checkpoint, owner, parts); });
  }
  StatusOr<LineRecord> WriteLineRecord(const LineRecord& record, Owner owner) override {
    return faults_->Run<StatusOr<LineRecord>>(
        StorageCall::kWriteLineRecord, [&] { return inner_->WriteLineRecord(record, owner); });
  }
  StatusOr<Published> Publish(const CheckpointKey& checkpoint, Owner owner) override {
    return faults_->Run<StatusOr<Published>>(StorageCall::kPublish,
                                             [&] { return inner_->Publish(checkpoint, owner); });
  }
  Status Reinstate(const CheckpointKey& checkpoint, Owner owner) override {
    return faults_->Run<Status>(StorageCall::kReinstate,
                                [&] { return inner_->Reinstate(checkpoint, owner); });
  }
  Status Sweep(const std::string& job, const SweepRules& rules) override {
    return faults_->Run<Status>(StorageCall::kSweep, [&] { return inner_->Sweep(job, rules); });
  }
  Status Delete(const CheckpointKey& checkpoint, Owner owner, DeleteKind kind,
                const Chosen& chosen) override {
    return faults_->Run<Status>(StorageCall::kDelete,
                                [&] { return inner_->Delete(checkpoint, owner, kind, chosen); });
  }
  StatusOr<StoredJob> Read(const std::string& job) override {
    return faults_->Run<StatusOr<StoredJob>>(StorageCall::kRead, [&] { return inner_->Read(job); });
  }
  StatusOr<LineNumbers> ReadLineNumbers(const std::string& job) override {
    return faults_->Run<StatusOr<LineNumbers>>(StorageCall::kRead,
                                               [&] { return inner_->ReadLineNumbers(job); });
  }
  StatusOr<std::vector<std::string>> Jobs() override {
    return faults_->Run<StatusOr<std::vector<std::string>>>(StorageCall::kJobs,
                                                            [&] { return inner_->Jobs(); });
  }
  StatusOr<Owner> JobOwner(const std::string& job) override {
    return faults_->Run<StatusOr<Owner>>(StorageCall::kJobOwner,
                                         [&] { return inner_->JobOwner(job); });
  }
  StatusOr<std::unique_ptr<Reader>> Open(const StoredCheckpoint& checkpoint, absl::string_view name,
                                         Owner reader) override {
    return faults_->Run<StatusOr<std::unique_ptr<Reader>>>(
        StorageCall::kOpen, [&]() -> StatusOr<std::unique_ptr<Reader>> {
          CAIRN_ASSIGN_OR_RETURN(auto opened, inner_->Open(checkpoint, name, reader));
          return std::make_unique<FaultyReader>(std::move(opened), faults_);
        });
  }
  Counters counters() const override { return inner_->counters(); }

 private:
  const std::unique_ptr<Storage> inner_;
  const std::shared_ptr<StorageFaults> faults_;
};

}  // namespace

std::unique_ptr<Storage> MakeFaultyStorage(std::unique_ptr<Storage> inner,
                                           std::shared_ptr<StorageFaults> faults) {
  return std::make_unique<FaultyStorage>(std::move(inner), std::move(faults));
}

}  // namespace cairn::storage

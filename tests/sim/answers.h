// One answer of the engine: it is checked, then the process that asked acts on it.
#pragma once

#include "tests/sim/clients.h"
#include "tests/sim/world.h"

namespace cairn::engine::sim {

class Answer {
 public:
  Answer(Clients* clients, Node* node, const Call& asked, StatusOr<reply::Body>* body,
         Attempt superseded);

  void Read();

 private:
  // --- one per kind of event: a new one does not compile until it is decided what its answer must
  // be, or that nobody asks it.
  void On(const event::Hello&);
  void On(const event::SessionEnded&) { NobodyAsks(); }
  void On(const event::ChooseAttempt& e);
  void On(const event::ResumeFrom&);
  void On(const event::Use& e);
  void On(const event::Create& e);
  void On(const event::SealObjects& e);
  void On(const event::Commit& e);
  void On(const event::Abort&) {}
  void On(const event::Store&) {}  // no writer here asks for it
  void On(const event::LocateChunk& e);
  void On(const event::Open& e);
  void On(const event::Release&) {}
  void On(const event::Renew&) {}
  void On(const event::MapStanding&) {}
  void On(const event::AwaitUnmap&) {}
  void On(const event::LendFailed&) { NobodyAsks(); }
  void On(const event::Latest& e);
  void On(const event::StatCheckpoint&);
  void On(const event::StatObject&) {}
  void On(const event::List&);
  void On(const event::Wait& e);
  void On(const event::PersistNow&) {}
  void On(const event::Leave&) {}
  void On(const event::Remove&) {}
  void On(const event::Pin&) {}
  void On(const event::PreviewPolicy&) {}
  void On(const event::SetPolicy&) {}
  void On(const event::Status&);
  void On(const event::SlabMade&) { NobodyAsks(); }
  void On(const event::SlabDestroyed&) { NobodyAsks(); }
  void On(const event::SlabProbed&) { NobodyAsks(); }
  void On(const event::ChunkWritten&) { NobodyAsks(); }
  void On(const event::ManifestWritten&) { NobodyAsks(); }
  void On(const event::Verified&) { NobodyAsks(); }
  void On(const event::Persisted&) { NobodyAsks(); }
  void On(const event::Stored&) { NobodyAsks(); }
  void On(const event::LineRecordWritten&) { NobodyAsks(); }
  void On(const event::FilesDeleted&) { NobodyAsks(); }
  void On(const event::JobScanned&) { NobodyAsks(); }
  void On(const event::TablesRead&) { NobodyAsks(); }
  void On(const event::LineNumbersRead&) { NobodyAsks(); }
  void On(const event::Exchanged&) { NobodyAsks(); }
  void On(const event::PeerSaid&) { NobodyAsks(); }
  void On(const event::LifeMet&) { NobodyAsks(); }
  void On(const event::SeatChanged&) { NobodyAsks(); }
  void On(const event::Fenced&) { NobodyAsks(); }
  void On(const event::GrantAsked&) { NobodyAsks(); }
  void On(const event::GrantEnded&) { NobodyAsks(); }
  void On(const event::FetchAdvanced&) { NobodyAsks(); }
  void On(const event::Fetched&) { NobodyAsks(); }
  void On(const event::StorageSeen&) { NobodyAsks(); }
  void On(const event::CallerLeft&) { NobodyAsks(); }
  void On(const event::Tick&) { NobodyAsks(); }
  void On(const event::Drain&) { NobodyAsks(); }
  void On(const event::JournalFull&) { NobodyAsks(); }

  void NobodyAsks();
  bool ok() const { return body_.ok(); }
  template <class T>
  T& As() {
    return std::get<T>(*body_);
  }

  // --- saving (answers_saving.cc)
  void OnRefusedCreate(const event::Create& e);
  void OnUnmapFirst(const reply::Create& create);
  bool GrantIsRight(const event::Create& e, const reply::Create& create);
  bool SameAsFirst(const event::Create& e, const reply::Create& create);
  void OnGrant(const event::Create& e, const reply::Create& create);
  void OnCommitted(const event::Commit& e);
  void OnRefusedCommit(const event::Commit& e);
  // Hands the process the descriptions that come before the answer; false when one never left.
  bool LendAll(const std::vector<Lend>& lends);
  // The save of this step cannot go on. A newer attempt ends the process's part in the job.
  void EndStep();

  // --- reading (answers.cc)
  bool RightObject(const event::Open& e, const CheckpointKey& key, const ObjectInfo& object);
  bool RightLatest(const event::Open& e, const CheckpointKey& key);
  void OnOpenFromMemory(const event::Open& e, const reply::Open& open);
  void OnChunkToWrite(const event::LocateChunk& e, const reply::Chunk& place);

  World& world_;
  Clients& clients_;
  Node& node_;
  Report& report_;
  Process& process_;
  const Call& asked_;
  StatusOr<reply::Body>& body_;
  const Attempt superseded_;
  bool of_save_ = false;  // it answers the call of the process's save under way
  bool lost_ = false;     // it never reaches the process
};

}  // namespace cairn::engine::sim

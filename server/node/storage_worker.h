// Deletes a checkpoint's files (action::DeleteFiles), writes line records (action::WriteLineRecord), and
// reads what storage has of a job (action::ScanJob).
//
// Threads of their own, apart from the persister's, so that nothing here waits for a persist. A job's
// actions are carried out one after the other, in their order: a scan that the engine asks for after a
// deletion does not find the deleted files. What hangs holds up its job alone.
#pragma once

#include <memory>

#include "server/engine/actions.h"
#include "server/node/event_gate.h"
#include "server/node/job_executor.h"
#include "server/storage/storage.h"

namespace cairn::node {

// Thread-safe.
class StorageWorker {
 public:
  // `storage` outlives the worker. It may be null: there are no threads then, and the engine, which
  // knows that there is no storage, asks for nothing.
  StorageWorker(storage::Storage* storage, std::shared_ptr<EventGate> gate);

  // Return at once; event::FilesDeleted, LineRecordWritten or JobScanned follows, unless Stop comes
  // first.
  void Start(engine::action::DeleteFiles action);
  void Start(engine::action::WriteLineRecord action);
  void Start(engine::action::ScanJob action);
  void Start(engine::action::ReadLineNumbers action);
  void Start(engine::action::ReadTables action);  // event::TablesRead follows
  void Start(engine::action::Reinstate action);   // nothing follows
  void Stop() { executor_.Stop(); }

 private:
  void DeleteFiles(const engine::action::DeleteFiles& action);
  void ScanJob(const engine::action::ScanJob& action);

  storage::Storage* const storage_;
  const std::shared_ptr<EventGate> gate_;
  JobExecutor executor_;  // last: its threads use the members above
};

}  // namespace cairn::node

// What is said of a job as a whole: choosing an attempt, where it resumes from, which step to use,
// the policy.
// persist() too, which is about one checkpoint and changes none of it here.
#pragma once

#include "server/engine/admission.h"
#include "server/engine/describing.h"
#include "server/engine/persistence.h"
#include "server/engine/records.h"
#include "server/engine/retention.h"
#include "server/engine/scanning.h"
#include "server/engine/succession.h"

namespace cairn::engine {

class Cluster;

class JobCalls {
 public:
  JobCalls(const Options& options, Outbox* out, Jobs* jobs, Sessions* sessions, Attempts* attempts,
           Persistence* persistence, Retention* retention, Standing* standing,
           Describing* describing, Scanning* scanning, Admission* admission, Records* records,
           Succession* succession);

  void set_cluster(Cluster* cluster) { cluster_ = cluster; }

  void On(const event::ChooseAttempt& event);
  void On(const event::ResumeFrom& event);
  void On(const event::Use& event);
  void On(const event::PreviewPolicy& event);
  void On(const event::SetPolicy& event);
  void On(const event::PersistNow& event);

 private:
  void ReinstateLine(const Job& job);
  Status CheckResume(const event::ResumeFrom& event, const Job& job) const;
  static std::optional<Attempt> UsedAlready(const Job& job, const Lineage& lineage);
  Status CheckUse(const event::Use& event, const Job& job) const;

  const Options& options_;
  Outbox& out_;
  Jobs& jobs_;
  Sessions& sessions_;
  Attempts& attempts_;
  Persistence& persistence_;
  Retention& retention_;
  Standing& standing_;
  Describing& describing_;
  Scanning& scanning_;
  Admission& admission_;
  Records& records_;
  Succession& succession_;
  Cluster* cluster_ = nullptr;  // set once, before the first event
};

}  // namespace cairn::engine

// Lives of a job that ask to begin while older ones may still save.
#pragma once

#include "tests/engine/engine_fixture.h"

namespace cairn::engine {

class SuccessionFixture : public EngineTest {
 protected:
  void SetUp() override {
    EngineTest::SetUp();
    fences = false;
  }
  event::Create AskedOf(SessionId session, Step step,
                        MonotonicNanos within = 10 * kNanosPerSecond) {
    event::Create create = CreateOf(session, PartOf(session, step), {{"model"}});
    create.deadline = now + within;
    Apply(create);
    return create;
  }
  Status AnswerOf(const event::Create& create) { return AnswerTo(create.caller.request).status(); }
};

}  // namespace cairn::engine

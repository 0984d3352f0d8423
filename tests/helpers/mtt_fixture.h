/* mtt_fixture.h: one device for all tests of a program; each test must leave nothing on it. */
#ifndef MTT_FIXTURE_H
#define MTT_FIXTURE_H

#include "mtt_engine.h"

/* The device that mtt_open_device opened. A test may replace it, but must restore it. */
extern mt_device *device;
/* A leaf [n] on `device` with these values, which requires grad. */
mt_tensor *mtt_leaf(int64_t n, const float *values);

/* For a group of tests: opens mtt_device() with the balance check on; closes it. Closing fails
 * where mtt_nothing_left() fails, for groups whose tests share tensors from a set-up function. */
int mtt_open_device(void **state);
int mtt_close_device(void **state);
/* After a test: fails if bytes are still allocated, an error was not cleared, or this thread still
 * has a scope, a hook or the grad mode off. */
int mtt_nothing_left(void **state);
/* An entry of the group's table for a test that must leave nothing. */
#define mtt_test(name) cmocka_unit_test_teardown(name, mtt_nothing_left)

#endif

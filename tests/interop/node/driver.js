'use strict';
// RocketMQ's Node client as a process: what to be comes as one JSON argument, messages to send come as JSON lines, and
// what happened goes out as JSON lines. See ../drivers.py.

const readline = require('readline');
const { Consumer, Message, Producer } = require('ali-ons');

const options = JSON.parse(process.argv[2]);
const say = event => process.stdout.write(JSON.stringify(event) + '\n');
const quiet = { info() {}, debug() {}, warn() {}, error(...what) { process.stderr.write(what.join(' ') + '\n'); } };
const signed = { accessKey: options.accessKey, secretKey: options.secretKey, onsChannel: 'CLOUD' };
const lines = readline.createInterface({ input: process.stdin });

async function produce() {
  const producer = new Producer({
    httpclient: {}, nameSrv: options.namesrv.split(';'), producerGroup: options.group, logger: quiet, maxMessageSize: 4 << 20,
    ...signed,
  });
  producer.on('error', error => process.stderr.write(`${error}\n`));
  await producer.ready();
  say({ ready: true });
  for await (const line of lines) {
    const order = JSON.parse(line);
    const message = new Message(order.topic, order.tag || '', order.body);
    if (order.keys) message.keys = [ order.keys ];
    if (order.level) message.delayTimeLevel = order.level;
    Object.assign(message.properties, order.properties);
    try {
      const result = await producer.send(message);
      say({ sent: order.body, status: result.sendStatus, offset: Number(result.queueOffset) });
    } catch (error) {
      say({ failed: order.body, why: `${error}` });
    }
  }
  await producer.close();
}

async function consume() {
  const consumer = new Consumer({
    httpclient: {}, nameSrv: options.namesrv.split(';'), consumerGroup: options.group, logger: quiet,
    maxReconsumeTimes: options.attempts || 16, isBroadcast: Boolean(options.broadcast), ...signed,
  });
  consumer.on('error', error => process.stderr.write(`${error}\n`));
  const wanted = options.sql ? { expressionType: 'SQL92', subString: options.sql } : options.expression || '*';
  consumer.subscribe(options.topic, wanted, async message => {
    const body = message.body.toString();
    say({
      got: body, topic: message.topic, tag: message.tags || '', keys: message.keys || '', queueId: message.queueId,
      offset: Number(message.queueOffset), times: message.reconsumeTimes, at: Date.now(),
    });
    if (body.startsWith('poison')) throw new Error('not this one'); // ACTION_RETRY is lost on a retry's second try
  });
  await consumer.ready();
  say({ ready: true });
  for await (const line of lines) say({ unknown: line });
  await consumer.close();
}

(options.kind === 'producer' ? produce() : consume()).then(
  () => process.exit(0),
  error => { process.stderr.write(`${error && error.stack}\n`); process.exit(1); }
);
